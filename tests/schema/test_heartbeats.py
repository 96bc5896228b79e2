from celery_affinity.schema.constants import is_heartbeat_late, is_timeout_too_short, should_be_reported


def test_heartbeat_thresholds_are_multiples_of_the_interval():
    assert not is_heartbeat_late(12.5, 5), "two missed heartbeats, and half an interval for the network"
    assert is_heartbeat_late(12.6, 5)
    assert not should_be_reported(10, 5), "a worker reports an event within two heartbeats"
    assert should_be_reported(10.1, 5)
    assert not is_timeout_too_short(10, 5), "two heartbeats"
    assert is_timeout_too_short(9.9, 5)
