"""The result reporter of an app."""

import celery
import pytest
from celery import Celery, states

from celery_affinity.results.reporter import ResultReporter
from celery_affinity.scheduler.messages import UnreportedEnd


def run():
    """Serve as a task."""


def test_apps_identity_depends_on_its_name_and_tasks():
    def identity(name, *tasks):
        with Celery(name, set_as_current=False) as app:
            for task in tasks:
                app.task(run, name=task, shared=False)
            return ResultReporter(app, "host", lambda: None).identity()

    unnamed, other, again = identity(None, "a"), identity(None, "b"), identity(None, "a")
    assert unnamed == again != other
    assert identity("proj", "a") not in (unnamed, identity("proj", "a", "b"))


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's backend uses it
@pytest.mark.parametrize("stored", [None, *sorted(states.READY_STATES)])
@pytest.mark.parametrize("how", ["lost", "max_deliveries"])
def test_stored_result_is_kept_when_its_job_is_dead(load_app, valkey, redis_client, stored, how):
    app = load_app("tests.support.apps.merging")
    result = app.tasks["add"].delay(1, 2)
    (message,) = (redis_client.get(key) for key in redis_client.scan_iter("*message:*"))
    if stored is not None:
        app.backend.store_result(result.id, KeyError("stored") if stored != states.SUCCESS else 3, stored)
    reported = []
    ResultReporter(app, "", lambda: None).tell(
        UnreportedEnd("job", how, "merging", result.id, "add"), message, lambda: reported.append(1)
    )
    assert reported
    assert result.state == (stored or states.FAILURE)
    assert ("WorkerLostError" in repr(result.result)) is (stored is None)


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="the setting is new in Celery 5.7")
@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's backend uses it
def test_reported_end_expires_like_a_failure(valkey, redis_client):
    with Celery("shop", broker=valkey.url, backend=valkey.url, set_as_current=False) as app:
        app.conf.update(broker_transport="celery_affinity:Transport", result_failure_expires=50, result_expires=9)
        result = app.task(run, name="add", shared=False).delay()
        (message,) = (redis_client.get(key) for key in redis_client.scan_iter("*message:*"))
        ResultReporter(app, "", lambda: None).tell(
            UnreportedEnd("job", "lost", "pdf", result.id, "add"), message, lambda: None
        )
        assert result.state == states.FAILURE
        assert 40 < redis_client.ttl(f"celery-task-meta-{result.id}") <= 50
