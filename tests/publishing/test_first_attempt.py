"""Options that a retry inherits from its first attempt, in its message and when a task publishes itself again."""

import pytest
from celery.exceptions import Ignore, Retry

from celery_affinity import Affinity
from celery_affinity.publishing.message import PROPERTY
from celery_affinity.publishing.option_sources import Expiry, expires_at

from ..support.messages import running
from ..support.stamped import one, published, task


def test_retry_with_another_expiry_keeps_that_expiry():
    until = Expiry("2030-01-01T00:00:00", 0.0)
    assert expires_at("2030-01-01T00:00:00", {"until": until}) is not None
    assert expires_at("2031-01-01T00:00:00", {"until": until}) is None
    assert expires_at("2030-01-01T00:00:00", {"until": ["2030-01-01T00:00:00", 0.0]}) is None, "from outside"


@pytest.fixture
def pdf(app):
    return task(app, affinity=Affinity("pdf", priority=2))


@pytest.fixture
def first_attempt(app, pdf):
    """Return a message whose options differ from its task's."""
    pdf.apply_async(affinity=Affinity("excel", on_demand=True), priority=7)
    ((type_, lane, _, message),) = published(app)
    assert (type_, lane) == ("excel", "demand.7")
    return message


def test_retry_keeps_the_first_attempts_options(app, pdf, first_attempt):
    with running(pdf, first_attempt), pytest.raises(Retry):
        pdf.retry(countdown=0)
    ((type_, lane, _, second_try),) = published(app)
    assert (type_, lane) == ("excel", "demand.7")
    with running(pdf, second_try), pytest.raises(Retry):
        pdf.retry(countdown=0)
    assert one(app) == ("excel", "demand.7")


def test_retry_may_set_other_options(app, pdf, first_attempt):
    with running(pdf, first_attempt), pytest.raises(Retry):
        pdf.retry(countdown=0, affinity="index", on_demand=False, priority=1)
    assert one(app) == ("index", "queued.1")


def test_publish_with_the_runs_own_id_is_a_retry(app, pdf, first_attempt):
    with running(pdf, first_attempt) as request:
        pdf.signature_from_request(request).apply_async()
    assert one(app) == ("excel", "demand.7")


def test_calls_of_a_task_do_not_inherit_its_options(app, pdf, first_attempt):
    other = task(app, affinity="index")
    with running(pdf, first_attempt) as request:
        assert request.headers is None
        for child, options in (
            (other, {}),
            (other, {"headers": request.headers}),
            (other, {"task_id": request.id}),
        ):
            child.apply_async(**options)
            assert one(app) == ("index", "queued.0")
        pdf.delay()
        assert one(app) == ("pdf", "queued.2")


def test_replacement_of_a_task_is_not_a_retry(app, pdf, first_attempt):
    """A caller that waits for the task waits for its replacement. The replacement has its own values for all other
    options.
    """
    with running(pdf, first_attempt), pytest.raises(Ignore):
        pdf.replace(pdf.s())
    assert one(app) == ("pdf", "demand.2")
    with running(pdf, first_attempt), pytest.raises(Ignore):
        pdf.replace(pdf.s().set(on_demand=False))
    assert one(app) == ("pdf", "queued.2")


def test_retry_of_a_stock_celery_call_keeps_its_mode(app, pdf, first_attempt):
    del first_attempt["properties"][PROPERTY]
    first_attempt["properties"]["on_demand"] = True
    with running(pdf, first_attempt), pytest.raises(Retry):
        pdf.retry(countdown=0)
    assert one(app) == ("excel", "demand.7")


@pytest.mark.parametrize(
    "kept", [None, "excel", 7, {"type": 7}, {"type": ""}, {"on_demand": "yes"}, [["type", "excel"]]]
)
def test_invalid_property_of_our_name_is_ignored(app, pdf, first_attempt, kept):
    first_attempt["properties"][PROPERTY] = kept
    with running(pdf, first_attempt), pytest.raises(Retry):
        pdf.retry(countdown=0)
    assert one(app) == ("excel", "queued.7")


def test_headers_named_like_our_options_belong_to_users(app, pdf):
    """A header named like an option or like the property of this package arrives as on stock Celery."""
    given = {"affinity": ["a", "list"], PROPERTY: {"type": "excel"}, "on_demand": "yes", "tenant": "acme"}
    pdf.apply_async(headers=given)
    ((type_, lane, _, message),) = published(app)
    assert (type_, lane) == ("pdf", "queued.2")
    with running(pdf, message) as request:
        assert request.headers == given


def test_migrated_message_keeps_its_calls_options(app, producer, pdf, first_attempt):
    """`celery.contrib.migrate` moves messages in this way: with kombu only, and the message's properties."""
    kept = {name: first_attempt["properties"][name] for name in (PROPERTY, "priority", "correlation_id")}
    options = {"headers": first_attempt["headers"], "content_type": "application/json", **kept}
    producer.publish(first_attempt["body"], **first_attempt["properties"]["delivery_info"], **options)
    assert one(app) == ("excel", "demand.7")
    producer.publish(first_attempt["body"], exchange="", routing_key="index", **options)
    assert one(app) == ("index", "demand.7")
