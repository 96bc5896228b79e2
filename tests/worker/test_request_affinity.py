"""The task's view of its claim: fencing token and key, in every pool."""

import pytest
from celery.app.task import Context

from celery_affinity.leases.held_claim import delivery_tag
from celery_affinity.publishing.message import PROPERTY
from celery_affinity.transport.inbox import PREEMPTIONS
from celery_affinity.worker.task_context import RequestAffinity, affinity_in

from ..support.fleet import POOLS
from ..support.processes import start_worker

KEYED = "tests.support.apps.keyed"


@pytest.fixture
def look(valkey, load_app):
    return load_app(KEYED).tasks["keyed.look"]


@pytest.mark.parametrize("pool", POOLS)
def test_task_sees_the_claim_of_each_attempt(look, valkey, pool):
    start_worker(KEYED, valkey.url, ["celery", "lists"], pool=pool)
    (first, second) = look.delay("HH", again=True).get(timeout=60)
    assert first[1] == second[1] == "city:HH", "a retry keeps its key"
    assert 0 < first[0] < second[0]
    ((fence, key),) = look.apply_async(exclusive=False).get(timeout=60)
    assert fence > second[0]
    assert key is None
    assert look.apply_async(("HH",), queue="lists").get(timeout=60) == [[None, None]], "a queue that is not scheduled"


def test_task_called_directly_has_no_claim(look):
    assert look("HH") == look.apply(("HH",)).get() == [[None, None]]


def test_message_properties_yield_the_claim():
    tag = delivery_tag("an-id!", "42")
    rate = {"rules": "key=rate%3Aacme rate=100/60000000"}
    assert affinity_in({"delivery_tag": tag, PROPERTY: rate}) == RequestAffinity(42, "rate:acme")
    assert affinity_in({"delivery_tag": tag}) == RequestAffinity(42, None)
    assert affinity_in({"delivery_tag": tag, PREEMPTIONS: 2}) == RequestAffinity(42, preemptions=2)
    for other in (None, {}, {"delivery_tag": 7}, {"delivery_tag": "a-uuid", PROPERTY: rate}, {"delivery_tag": "a:b"}):
        assert affinity_in(other) == RequestAffinity(None, None)


def test_affinity_header_of_users_is_kept_like_on_stock():
    request = Context({"affinity": "of a user", "id": "an-id"})
    assert request.affinity == "of a user"
    assert request.headers == {"affinity": "of a user"}
    assert Context().affinity == RequestAffinity()


def test_request_without_an_attribute_raises_celerys_error():
    assert not hasattr(Context(), "anything")
    with pytest.raises(AttributeError, match="'Context' object has no attribute 'anything'"):
        Context().anything  # noqa: B018
