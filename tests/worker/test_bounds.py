"""Bounded queues and real workers: follow-up calls pass while a queue is full; callers of dropped jobs get errors."""

import pytest
from celery import chain, chord
from celery.exceptions import TaskRevokedError

from celery_affinity import QueueFull
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.fleet import in_time, wait_for_state
from ..support.processes import start_worker, wait_until

APP = "tests.support.apps.bounded"


@pytest.fixture
def bounded(load_app, valkey, redis_client, tmp_path):
    """Return the app with its `report`, a function that starts workers, and the path that frees the tasks."""
    app = load_app(APP)
    app.report = Report(Scheduler(redis_client, Keys()).reader)
    app.start = lambda *types, pool="threads": start_worker(APP, valkey.url, types, pool=pool, concurrency=1)
    app.free = tmp_path / "free"
    return app


def of_pdf(app):
    return next((each for each in app.report.status().types if each.type == "pdf"), None)


def call(app, name, *args):
    return app.tasks[f"{APP}.{name}"].s(*args)


@pytest.mark.parametrize("pool", in_time("threads", "prefork"))
def test_retries_and_follow_up_calls_pass_a_full_queue(bounded, pool):
    bounded.start("pdf", pool=pool)
    retried = call(bounded, "flaky", str(bounded.free)).delay()
    wait_until(lambda: of_pdf(bounded).claimed == 1, 30, "it runs")
    steps = chain(call(bounded, "render", 1), call(bounded, "render")).delay()
    header = [call(bounded, "render", 2)]
    both = chord(header, call(bounded, "joined")).delay()
    with pytest.raises(QueueFull):
        call(bounded, "render", "late").delay()
    bounded.free.touch()
    assert retried.get(timeout=30) == "at the second try"
    assert steps.get(timeout=30) == 1
    assert both.get(timeout=30) == [2]


def test_worker_of_another_type_reports_a_dropped_job(bounded):
    results = [call(bounded, "log", line).delay() for line in range(3)]
    bounded.start("pdf")
    wait_for_state(results[0], "REVOKED")
    with pytest.raises(TaskRevokedError, match="dropped: too many jobs of type log waited"):
        results[0].get(timeout=10)
    bounded.start("log")
    assert [result.get(timeout=30) for result in results[1:]] == [1, 2]
