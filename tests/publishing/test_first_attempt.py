"""Options of the first attempt that a retry finds: in its message, and as a task publishes it again."""

import pytest
from celery.exceptions import Ignore, Retry

from celery_affinity import Affinity
from celery_affinity.publishing.message import PROPERTY
from celery_affinity.publishing.option_sources import Expiry, expires_at

from ..support.messages import running
from ..support.stamped import one, published, task


def test_a_retry_with_another_expiry_has_that():
    until = Expiry("2030-01-01T00:00:00", 0.0)
    assert expires_at("2030-01-01T00:00:00", {"until": until}) is not None
    assert expires_at("2031-01-01T00:00:00", {"until": until}) is None
    assert expires_at("2030-01-01T00:00:00", {"until": ["2030-01-01T00:00:00", 0.0]}) is None, "from outside"


@pytest.fixture
def pdf(app):
    return task(app, affinity=Affinity("pdf", priority=2))


@pytest.fixture
def first_attempt(app, pdf):
    """Return a message with other options than its task."""
    pdf.apply_async(affinity=Affinity("excel", on_demand=True), priority=7)
    ((type_, lane, _, message),) = published(app)
    assert (type_, lane) == ("excel", "demand.7")
    return message


def test_a_retry_keeps_what_its_first_attempt_had(app, pdf, first_attempt):
    with running(pdf, first_attempt), pytest.raises(Retry):
        pdf.retry(countdown=0)
    ((type_, lane, _, second_try),) = published(app)
    assert (type_, lane) == ("excel", "demand.7")
    with running(pdf, second_try), pytest.raises(Retry):
        pdf.retry(countdown=0)
    assert one(app) == ("excel", "demand.7")


def test_a_retry_may_ask_for_another_thing(app, pdf, first_attempt):
    with running(pdf, first_attempt), pytest.raises(Retry):
        pdf.retry(countdown=0, affinity="index", on_demand=False, priority=1)
    assert one(app) == ("index", "queued.1")


def test_what_is_published_again_under_the_id_of_the_run_is_a_retry_as_well(app, pdf, first_attempt):
    with running(pdf, first_attempt) as request:
        pdf.signature_from_request(request).apply_async()
    assert one(app) == ("excel", "demand.7")


def test_what_a_task_publishes_has_what_it_asks_for_itself(app, pdf, first_attempt):
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


def test_what_replaces_a_task_is_no_retry(app, pdf, first_attempt):
    """A caller that waits for the task waits for its replacement; all other options are the replacement's own."""
    with running(pdf, first_attempt), pytest.raises(Ignore):
        pdf.replace(pdf.s())
    assert one(app) == ("pdf", "demand.2")
    with running(pdf, first_attempt), pytest.raises(Ignore):
        pdf.replace(pdf.s().set(on_demand=False))
    assert one(app) == ("pdf", "queued.2")


def test_a_retry_of_what_stock_celery_sent_keeps_its_mode(app, pdf, first_attempt):
    del first_attempt["properties"][PROPERTY]
    first_attempt["properties"]["on_demand"] = True
    with running(pdf, first_attempt), pytest.raises(Retry):
        pdf.retry(countdown=0)
    assert one(app) == ("excel", "demand.7")


@pytest.mark.parametrize(
    "kept", [None, "excel", 7, {"type": 7}, {"type": ""}, {"on_demand": "yes"}, [["type", "excel"]]]
)
def test_what_is_not_ours_under_our_name_says_nothing(app, pdf, first_attempt, kept):
    first_attempt["properties"][PROPERTY] = kept
    with running(pdf, first_attempt), pytest.raises(Retry):
        pdf.retry(countdown=0)
    assert one(app) == ("excel", "queued.7")


def test_headers_are_the_users_alone(app, pdf):
    """A header named as an option of ours, or as our property, arrives as on stock."""
    given = {"affinity": ["a", "list"], PROPERTY: {"type": "excel"}, "on_demand": "yes", "tenant": "acme"}
    pdf.apply_async(headers=given)
    ((type_, lane, _, message),) = published(app)
    assert (type_, lane) == ("pdf", "queued.2")
    with running(pdf, message) as request:
        assert request.headers == given


def test_a_message_that_is_moved_keeps_what_its_call_asked_for(app, producer, pdf, first_attempt):
    """`celery.contrib.migrate` moves messages so: with kombu alone, and the properties of the message."""
    kept = {name: first_attempt["properties"][name] for name in (PROPERTY, "priority", "correlation_id")}
    options = {"headers": first_attempt["headers"], "content_type": "application/json", **kept}
    producer.publish(first_attempt["body"], **first_attempt["properties"]["delivery_info"], **options)
    assert one(app) == ("excel", "demand.7")
    producer.publish(first_attempt["body"], exchange="", routing_key="index", **options)
    assert one(app) == ("index", "demand.7")
