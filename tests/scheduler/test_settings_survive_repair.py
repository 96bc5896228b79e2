"""A setting changed at run time keeps its value after repairs, and after workers join with another app.conf."""

from types import SimpleNamespace

import pytest
from celery import Celery

from celery_affinity import SettingError
from celery_affinity.check.jobs import settings_damaged
from celery_affinity.publishing.app_config import settings_of
from celery_affinity.scheduler import runtime_settings
from celery_affinity.scheduler.messages import JoinArguments
from celery_affinity.settings.loader import CHANGEABLE, parse_change
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

#: Values as an operator types them. The test tries all of them for each setting; each setting accepts some of them.
TYPED = (
    *("none", "0", "1", "0.5", "-10", "-0.25", "1e-9", "1e3", "60", "7200.125", "1e-300"),
    *(str(10**power) for power in range(2, 10)),
    *("1000000", "604800", "315360000", "315360000.0", "1000000000"),
    *("higher-first", "lower-first", "capacity", "free", "idle", "weighted", "age", "share"),
    *("crawl:*=8 type:pdf=20 rate:mail:*=100/m", "a%20b%25=0", "*=1000000000", "rate:*=999999999/s", "type:a%2Cb=1"),
    *("pdf:queued=2 pdf:0-4=25% *:0=1", "*:on_demand=100%", "p%3Adf:10=1000000000"),
    *("acme=max:10,min:2 *=max:20", "a%3Db=max:none,min:1,weight:999999", "*=max:0"),
)

#: The workers' app.conf, with non-default values where possible.
CONF = Settings(
    limits={"type:pdf": 3, "k": 1},
    tenants={"acme": {"max": 5}},
    reserve={"pdf": {"queued": 1}},
    key_patience=7,
    reserve_patience=9,
    priority_order="lower-first",
    max_deliveries=4,
    tenant_turns="share",
    placement="weighted",
)


@pytest.fixture
def fleet(fleet):
    fleet.scheduler.join(JoinArguments("worker", "worker@host", ["pdf"], 1, 0, "shop"), shared_settings(CONF))
    return fleet


def in_force(fleet):
    return {each.name: each.value for each in runtime_settings.read_settings(fleet.scheduler, CONF)}


def accepted(name):
    """Return the values in `TYPED` that the setting accepts, given the default heartbeat interval."""
    found = []
    for typed in TYPED:
        try:
            _, value = parse_change(name, typed)
        except SettingError:
            continue
        if name != "worker_timeout" or value >= 10:
            found.append(typed)
    return found


def is_same(now, wanted):
    """Return True if two values are equal, or equal to the µs for times, because Redis stores times in µs."""
    return abs(now - wanted) <= 1e-6 if isinstance(now, int | float) else now == wanted


def test_each_value_of_each_setting_survives_a_repair(fleet):
    """Each round sets all settings to new values; then a worker joins whose app.conf has different values."""
    values = {name: accepted(name) for name in CHANGEABLE}
    assert min(map(len, values.values())) > 1, "each setting has several values"
    wrong = {}
    for number in range(max(map(len, values.values()))):
        typed = {name: of_name[number % len(of_name)] for name, of_name in values.items()}
        for each in runtime_settings.change_settings(fleet.scheduler, CONF, typed):
            wanted = parse_change(each.name, typed[each.name])[1]
            if not isinstance(wanted, str) and not is_same(each.value, wanted):
                wrong[each.name, typed[each.name]] = f"is {each.value!r} before any repair"
        before = in_force(fleet)
        found = fleet.scheduler.repair(thorough=True)
        fleet.sync("worker")
        fleet.scheduler.join(
            JoinArguments(f"worker-{number}", "next@host", ["pdf"], 1, 0, "shop"), shared_settings(CONF)
        )
        found += fleet.scheduler.repair(thorough=True)
        now = in_force(fleet)
        wrong |= {(name, typed[name]): f"is {now[name]!r}" for name in typed if now[name] != before[name]}
        if found:
            wrong[number] = found
    assert not wrong


def test_damaged_setting_is_reported_until_set_again(fleet, caplog):
    settings = fleet.scheduler.keys.key("settings")
    runtime_settings.change_settings(fleet.scheduler, CONF, {"limits": "none", "max_deliveries": "9"})
    fleet.scheduler.client.hset(settings, mapping={"limits": "pdf =3", "max_deliveries": "many", "rarity": "Free"})
    fleet.scheduler.client.hdel(settings, "reserve")
    assert fleet.scheduler.repair(thorough=True, says_only=True)
    assert not reported(fleet), "nothing was changed"
    fleet.scheduler.repair(thorough=True)
    assert "limits of {affinity:default}:settings: pdf =3 instead of type%3Apdf=3" in caplog.text
    assert reported(fleet) == {"limits", "max_deliveries", "rarity", "reserve"}
    assert in_force(fleet)["max_deliveries"] == 4
    assert not fleet.scheduler.repair(thorough=True)
    runtime_settings.change_settings(fleet.scheduler, CONF, {"limits": "none", "max_deliveries": "9"})
    runtime_settings.reset_settings(fleet.scheduler, CONF, ["rarity"])
    assert reported(fleet) == {"reserve"}


def reported(fleet):
    """Return the settings that both the settings list and `check` report as damaged."""
    listed = {each.name for each in runtime_settings.read_settings(fleet.scheduler, CONF) if each.damaged_s is not None}
    facts = SimpleNamespace(fleet=SimpleNamespace(settings=of_check(fleet)))
    said = [finding.what for finding in settings_damaged.findings(facts)]
    assert len(said) == len(listed)
    assert all(f"affinity_{name} " in " ".join(said) for name in listed)
    return listed


def of_check(fleet):
    return runtime_settings.read_settings(fleet.scheduler, settings_of(Celery("shop", set_as_current=False)))


def test_check_agrees_with_listed_settings_after_repair(fleet):
    for name in ("limits", "tenants", "reserve", "reserve_patience", "key_patience"):
        runtime_settings.change_settings(fleet.scheduler, CONF, {name: "none"})
    fleet.scheduler.repair(thorough=True)
    listed = {each.name: each.value for each in runtime_settings.read_settings(fleet.scheduler, Settings())}
    assert {name for name, value in listed.items() if value == "none"} >= {"limits", "tenants", "reserve"}
    assert {each.name: each.value for each in of_check(fleet)} == listed


def test_negative_worker_timeout_is_reset(fleet):
    """With it, each tick would declare all workers dead."""
    client, key = fleet.scheduler.client, fleet.scheduler.keys.key("settings")
    before = client.hget(key, "worker_timeout_us")
    client.hset(key, "worker_timeout_us", "-5")
    assert fleet.scheduler.repair()
    assert client.hget(key, "worker_timeout_us") == before
