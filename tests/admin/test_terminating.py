"""A cancel with terminate reports tasks that the worker's pool cannot end, for one job or all matching jobs."""

import pytest

import celery_affinity

from ..support.command import affinity
from ..support.fleet import Fleet
from ..support.processes import wait_until


@pytest.fixture
def fleet(valkey, redis_client, tmp_path, app):
    return Fleet(valkey, redis_client, tmp_path, app)


def running(fleet, name, pool):
    """Start a worker with *pool* and a task that outlasts the test; return the task id."""
    fleet.start(name, "pdf" if pool == "threads" else "excel", pool=pool)
    task = fleet.tasks["pdf" if pool == "threads" else "excel"].delay(name, 120)
    wait_until(lambda: celery_affinity.jobs(fleet.app).get(task.id).state == "running", 30, f"{name} runs")
    return task.id


def test_threads_pool_task_continues_and_the_command_reports_it(fleet, app):
    in_thread, in_process = running(fleet, "threads1", "threads"), running(fleet, "prefork1", "prefork")
    jobs = celery_affinity.jobs(app)
    change = jobs.cancel(in_thread, terminate=True)
    assert (change.done, change.found) == (False, "running")
    assert change.note.startswith("it runs on threads1@")
    assert change.note.endswith(", threads, cannot end a task: it continues until it ends or its worker is killed")
    run = affinity(fleet.url, "cancel", "--state", "running", "--terminate", "--yes")
    assert run.stdout.splitlines()[-1] == "1 done; 1 unchanged: now running"
    assert run.stderr.splitlines()[-1] == "1 go on: their workers' pools (threads) cannot end a task"
    wait_until(lambda: jobs.get(in_process).state == "revoked", 30, "the prefork pool ended it")
    assert jobs.get(in_thread).state == "running"


def test_terminate_of_a_silent_worker_reports_an_unknown_result(app, valkey, redis_client, fleet):
    task_id = running(fleet, "solo1", "solo")
    change = celery_affinity.jobs(app).cancel(task_id, terminate=True)
    assert change.note == ("revoked: its worker was ordered to end it; the worker did not say whether its pool can")
