"""Claims that a pause recalls: those of what was paused, up to the number that the server had given by then."""

import pytest

from celery_affinity.leases.claims import WithdrawnTypes
from celery_affinity.schema.values import encode_part


@pytest.fixture
def withdrawn_types():
    return WithdrawnTypes()


def test_without_a_pause_nothing_is_recalled(withdrawn_types):
    assert not withdrawn_types
    assert not withdrawn_types.has("job", "pdf", "1")


def test_claims_from_before_the_pause_of_their_type_are_recalled_and_no_others(withdrawn_types):
    withdrawn_types.add(f"type:{encode_part('a {rare}: one')}", 7)
    assert withdrawn_types.has("job", "a {rare}: one", "7")
    assert not withdrawn_types.has("job", "a {rare}: one", "8"), "granted when the pause was over"
    assert not withdrawn_types.has("job", "pdf", "7")


def test_a_pause_of_everything_recalls_all_types(withdrawn_types):
    withdrawn_types.add("*", 7)
    assert withdrawn_types.has("job", "pdf", "7")
    assert not withdrawn_types.has("job", "pdf", "8")


def test_a_pause_of_a_key_recalls_jobs_with_rules(withdrawn_types):
    withdrawn_types.add("key:city%3AHH", 7)
    assert withdrawn_types.has("job!", "pdf", "7")
    assert not withdrawn_types.has("job", "pdf", "7")


def test_a_worker_that_joins_anew_forgets(withdrawn_types):
    withdrawn_types.add("*", 7)
    withdrawn_types.clear()
    assert not withdrawn_types.has("job", "pdf", "1")
