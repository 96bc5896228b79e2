"""Slots that waiting jobs of a limited type lend to other types."""

from celery_affinity.policy.slot_math import Lending, lending_of


def test_limited_types_lend_slots_of_waiting_jobs():
    assert lending_of({}, ["a", "b"], 4) == Lending(0, frozenset())
    assert lending_of({"a": 2}, ["a", "b"], 4) == Lending(2, frozenset())
    assert lending_of({"a": 3}, ["a", "b"], 4) == Lending(3, {"a"})
    assert lending_of({"a": 2, "b": 1}, ["a", "b", "c"], 4) == Lending(3, {"a", "b"})
    assert lending_of({"a": 3}, ["a"], 4) == Lending(2, frozenset()), "no other type could use them"
    assert lending_of({"a": 1}, ["a"], 1) == Lending(0, frozenset())
    assert lending_of({"gone": 3}, ["b"], 4) == Lending(3, frozenset()), "its queue was cancelled"
