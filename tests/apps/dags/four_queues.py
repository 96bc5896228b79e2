"""A DAG with tasks in four queues: mapped tasks, a retried task, and a task that joins their results."""

import os
from datetime import timedelta

from airflow.sdk import dag, get_current_context, task


def where():
    """Return the queue of the worker that runs this task, from its environment."""
    return os.environ["WORKER_OF"]


@dag(schedule=None, catchup=False)
def four_queues():
    @task
    def begin():
        return where()

    @task(queue="pdf")
    def render(page):
        return [page, where()]

    @task(queue="excel", retries=1, retry_delay=timedelta(seconds=1))
    def calculate():
        attempt = get_current_context()["ti"].try_number
        if attempt == 1:
            raise ValueError("the first attempt fails")
        return [attempt, where()]

    @task(queue="index")
    def join(pages, sheet):
        return [sorted(pages), sheet, where()]

    first = begin()
    pages = render.expand(page=[1, 2, 3, 4])
    sheet = calculate()
    first >> [pages, sheet]
    join(pages, sheet)


four_queues()
