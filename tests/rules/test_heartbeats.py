"""When a worker is late, and which timeout leaves time for a late heartbeat."""

from celery_affinity.rules.heartbeats import has_been_said, is_late, is_too_short


def test_a_worker_is_late_when_two_heartbeats_are_missed_and_had_half_an_interval_for_their_way():
    assert not is_late(12.5, 5)
    assert is_late(12.6, 5)


def test_after_two_heartbeats_a_worker_has_said_what_happened():
    assert not has_been_said(10, 5)
    assert has_been_said(10.1, 5)


def test_a_timeout_of_two_heartbeats_is_long_enough():
    assert not is_too_short(10, 5)
    assert is_too_short(9.9, 5)
