"""Settings written to Redis are read back with the same values."""

from celery_affinity.settings.loader import CHANGEABLE
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import NAME_IN_REDIS, from_redis, to_redis


def test_default_settings_survive_a_round_trip_through_redis(subtests):
    for name in CHANGEABLE:
        with subtests.test(str(name)):
            value = getattr(Settings(), name)
            is_none = name in ("limits", "reserve", "reserve_patience", "tenants")
            assert from_redis(name, to_redis(name, value)) == ("none" if is_none else value)


def test_decimal_settings_survive_a_round_trip_through_redis():
    assert from_redis("worker_timeout", to_redis("worker_timeout", 2.5)) == 2.5
    assert from_redis("age_weight", to_redis("age_weight", 0.1)) == 0.1
    assert set(NAME_IN_REDIS) >= set(CHANGEABLE)
