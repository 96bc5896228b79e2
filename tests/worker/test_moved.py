"""Moved jobs on a real worker: a retry keeps the type, priority and mode that an operator set."""

import pytest

import celery_affinity

from ..support.fleet import in_time
from ..support.processes import start_worker

APP = "tests.support.apps.moved"


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_retry_keeps_the_move_of_its_job(load_app, valkey, redis_client, pool):
    app = load_app(APP)
    jobs = celery_affinity.jobs(app)
    again, urgent, together = (app.tasks[f"{APP}.{name}"] for name in ("again", "again_on_demand", "again_together"))
    moved, calm, typed = again.delay(), urgent.delay(), again.delay()
    calls = [together.delay("key") for _ in range(3)]
    for result in (moved, calm, typed, calls[1]):
        assert jobs.move(result.id, "pdf").done
    assert jobs.prioritise(moved.id, priority=7, on_demand=True).done  # 10 is the highest here; for the app it is 0
    assert jobs.prioritise(calm.id, on_demand=False).done
    assert jobs.prioritise(calls[0].id, priority=8).done
    start_worker(APP, valkey.url, ["pdf"], pool=pool)
    assert moved.get(timeout=60) == ["pdf", 3, True]
    assert calm.get(timeout=60) == ["pdf", 9, False]
    assert typed.get(timeout=60) == ["pdf", 9, None]
    assert [each.get(timeout=60) for each in calls] == [["pdf", 2, None]] * 3
