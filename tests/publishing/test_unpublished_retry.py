"""A retry that cannot be published: the run is requeued if it acks late, and fails otherwise."""

import pytest
from celery import Celery
from celery.canvas import Signature
from celery.exceptions import Reject
from kombu.exceptions import OperationalError

OURS, STOCK = "celery_affinity:Transport", "redis"


class AwayError(OperationalError):
    """The broker does not answer."""


def retry(monkeypatch, error, *, acks_late, transport=OURS):
    app = Celery("retries", set_as_current=False)
    app.conf.broker_transport = transport

    @app.task(name="retried", acks_late=acks_late)
    def task(): ...

    task.push_request(id="id", args=(), kwargs={}, called_directly=False, retries=0)

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Signature, "apply_async", fail)
    try:
        task.retry(countdown=0)
    finally:
        task.pop_request()


def test_late_acked_task_runs_again(monkeypatch):
    with pytest.raises(Reject) as caught:
        retry(monkeypatch, AwayError("away"), acks_late=True)
    assert caught.value.requeue
    assert isinstance(caught.value.reason, AwayError)


def test_early_acked_task_fails_for_its_caller(monkeypatch):
    with pytest.raises(AwayError):
        retry(monkeypatch, AwayError("away"), acks_late=False)


@pytest.mark.parametrize("acks_late", [True, False])
def test_refused_retry_fails_with_the_reason(monkeypatch, acks_late):
    with pytest.raises(ValueError, match="refused"):
        retry(monkeypatch, ValueError("refused"), acks_late=acks_late)


def test_app_with_another_transport_is_not_changed(monkeypatch):
    with pytest.raises(Reject) as caught:
        retry(monkeypatch, AwayError("away"), acks_late=True, transport=STOCK)
    assert not caught.value.requeue
