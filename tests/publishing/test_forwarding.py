"""Messages that a running task publishes: calls with its headers, jobs of other apps, and its retries."""

import celery
import pytest

from celery_affinity.schema.keys import Keys

from ..support.processes import start_worker

#: Headers set by users, with names of all kinds.
GIVEN = {"affinity": ["a", "list"], "tenant": "acme", "trace": {"id": 7}}

#: Options of a task's first call, and the options that its retries must inherit.
ASKED = {"affinity": "mail", "on_demand": True}
KEPT = {"queue": "mail", "on_demand": True}

WITHIN_S = 60


@pytest.fixture(params=["prefork", "threads"])
def tasks(request, valkey, redis_client, load_app):
    app = load_app("tests.support.apps.several")
    start_worker("tests.support.apps.several", valkey.url, ["pdf", "mail"], pool=request.param)
    app.pool_name = request.param
    return app.tasks


def test_running_task_publishes_by_app_and_retries_by_call(tasks, redis_client):
    results = {name: tasks[name].apply_async(headers=GIVEN, **ASKED) for name in ("parent", "retrying", "failing")}
    seen = {"headers": GIVEN, "kept": KEPT}
    assert results["retrying"].get(timeout=WITHIN_S) == {**seen, "retries": 2}
    assert results["failing"].get(timeout=WITHIN_S) == {**seen, "retries": 1}
    assert results["parent"].get(timeout=WITHIN_S) == GIVEN
    expected = {("of-first", "queued.0"): 2, ("of-second", "queued.10"): 2, ("index", "queued.0"): 2}
    waiting = {place: redis_client.zcard(Keys().key("lane", *place)) for place in expected}
    assert waiting == expected
    assert redis_client.llen("lists-of-third") == 2


def test_retry_for_a_lost_process_keeps_the_first_options(tasks):
    if tasks["lost"].app.pool_name != "prefork" or celery.VERSION[:2] < (5, 7):
        pytest.skip("only Celery's prefork pool has such a retry, from 5.7 on")
    result = tasks["lost"].apply_async(headers=GIVEN, **ASKED)
    assert result.get(timeout=WITHIN_S) == {"headers": GIVEN, "kept": KEPT, "retries": 1}
