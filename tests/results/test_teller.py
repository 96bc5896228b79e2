"""The teller of an app's ends."""

import celery
import pytest
from celery import Celery, states

from celery_affinity.results.reporter import ResultReporter
from celery_affinity.scheduler.messages import UnreportedEnd


def run():
    """Be a task."""


def test_an_app_is_known_by_its_name_and_its_tasks():
    def identity(name, *tasks):
        with Celery(name, set_as_current=False) as app:
            for task in tasks:
                app.task(run, name=task, shared=False)
            return ResultReporter(app, "host", lambda: None).identity()

    unnamed, other, again = identity(None, "a"), identity(None, "b"), identity(None, "a")
    assert unnamed == again != other
    assert identity("proj", "a") not in (unnamed, identity("proj", "a", "b"))


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's backend uses it
@pytest.mark.parametrize("known", [None, *sorted(states.READY_STATES)])
@pytest.mark.parametrize("how", ["lost", "max_deliveries"])
def test_a_caller_whose_end_is_known_keeps_it_although_its_job_is_dead(load_app, valkey, redis_client, known, how):
    app = load_app("tests.support.apps.merging")
    result = app.tasks["add"].delay(1, 2)
    (message,) = (redis_client.get(key) for key in redis_client.scan_iter("*message:*"))
    if known is not None:
        app.backend.store_result(result.id, KeyError("its own") if known != states.SUCCESS else 3, known)
    told = []
    ResultReporter(app, "", lambda: None).tell(
        UnreportedEnd("job", how, "merging", result.id, "add"), message, lambda: told.append(1)
    )
    assert told
    assert result.state == (known or states.FAILURE)
    assert ("WorkerLostError" in repr(result.result)) is (known is None)


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="the setting is new in Celery 5.7")
@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's backend uses it
def test_an_end_that_no_worker_told_expires_as_failures_do(valkey, redis_client):
    with Celery("shop", broker=valkey.url, backend=valkey.url, set_as_current=False) as app:
        app.conf.update(broker_transport="celery_affinity:Transport", result_failure_expires=50, result_expires=9)
        result = app.task(run, name="add", shared=False).delay()
        (message,) = (redis_client.get(key) for key in redis_client.scan_iter("*message:*"))
        ResultReporter(app, "", lambda: None).tell(
            UnreportedEnd("job", "lost", "pdf", result.id, "add"), message, lambda: None
        )
        assert result.state == states.FAILURE
        assert 40 < redis_client.ttl(f"celery-task-meta-{result.id}") <= 50
