"""Invalid settings in Redis are ignored in favour of the process's own settings."""

from types import SimpleNamespace

from hypothesis import example, given
from hypothesis import strategies as st

from celery_affinity.scheduler import runtime_settings
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import complete_settings, shared_settings, weights_of

from ..support.from_outside import TEXTS
from ..support.scripted_fleet import ScriptedFleet


@given(
    st.dictionaries(st.sampled_from([*shared_settings(Settings()), "priority_reversed", "revision", "other"]), TEXTS)
)
@example({"heartbeat_interval_us": "1E0"})
@example({"reserve_patience_us": "1"})
def test_invalid_settings_in_redis_are_ignored(found):
    in_force = complete_settings(found)
    weights_of(found)
    assert int(in_force["heartbeat_interval_us"]) > 0
    scheduler = SimpleNamespace(reader=SimpleNamespace(settings=lambda: (found, found)))
    own = Settings()
    for each in runtime_settings.read_settings(scheduler, own):
        assert type(each.value) in (int, float, str)
        assert "none" in (each.value, each.own) or isinstance(each.value, str) == isinstance(each.own, str)


def test_invalid_settings_do_not_reach_the_lease(redis_client, caplog):
    scheduler = Scheduler(redis_client, Keys())
    ScriptedFleet(scheduler).join("worker", "pdf")
    redis_client.hset(Keys().key("settings"), "worker_timeout_us", "half an hour")
    runtime_settings._warn_invalid_value.cache_clear()
    log = runtime_settings.SettingsLog(Settings())
    log.update(scheduler, revision=1)
    assert log.worker_timeout_s == 30
    assert "affinity_worker_timeout in Redis is invalid" in caplog.text


def test_repair_keeps_unknown_settings_and_drops_invalid_ones(redis_client):
    scheduler = Scheduler(redis_client, Keys())
    ScriptedFleet(scheduler).join("worker", "pdf")
    written = {"of_a_newer_release": "slowly, and in turns", "heartbeat_interval_us": "slowly", "revision": "one"}
    redis_client.hset(Keys().key("settings"), mapping=written)
    scheduler.repair(thorough=True)
    left = redis_client.hmget(Keys().key("settings"), *written)
    assert left[0].decode() == written["of_a_newer_release"]
    assert b"slowly" not in left[1:]
    assert b"one" not in left[1:]
    assert not scheduler.repair(thorough=True)


def test_setting_without_a_valid_value_anywhere_is_reset_once(redis_client):
    """Each repair once announced it again: workers logged it, and a tick re-evaluated all keys."""
    scheduler, key = Scheduler(redis_client, Keys()), Keys().key
    ScriptedFleet(scheduler).join("worker", "pdf")
    for name in ("settings", "conf_last"):
        redis_client.hset(key(name), "heartbeat_interval_us", "slowly")
    assert scheduler.repair(thorough=True)
    revision = redis_client.hget(key("settings"), "revision")
    assert not scheduler.repair(thorough=True)
    assert redis_client.hget(key("settings"), "revision") == revision
