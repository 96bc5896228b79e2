"""When a worker is late, and which timeout leaves time for a late heartbeat."""

from celery_affinity.schema.constants import is_heartbeat_late, is_timeout_too_short, should_be_reported


def test_a_worker_is_late_when_two_heartbeats_are_missed_and_had_half_an_interval_for_their_way():
    assert not is_heartbeat_late(12.5, 5)
    assert is_heartbeat_late(12.6, 5)


def test_after_two_heartbeats_a_worker_has_said_what_happened():
    assert not should_be_reported(10, 5)
    assert should_be_reported(10.1, 5)


def test_a_timeout_of_two_heartbeats_is_long_enough():
    assert not is_timeout_too_short(10, 5)
    assert is_timeout_too_short(9.9, 5)
