"""Settings at run time: they apply to the next claim, are stored and validated, and reach the processes."""

import json
import logging
import re

import pytest
import redis

from celery_affinity import SettingError
from celery_affinity.embedded import EmbeddedServer
from celery_affinity.scheduler import runtime_settings
from celery_affinity.scheduler.messages import JoinArguments
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

from ..support.apps import APP
from ..support.command import affinity
from ..support.processes import start_worker, wait_until

AGE_WEIGHT_MUST = "affinity_age_weight must be a number of points a second, above 0, up to 1,000,000, got:"
PERCENTAGE_MUST = "affinity_priority_percentage must be a whole number, 0 or more, up to 100, got:"


def join(fleet, worker, app="shop", **conf):
    joining = JoinArguments(worker, f"{worker}@host", ["pdf"], 1, 0, app)
    return fleet.scheduler.join(joining, shared_settings(Settings(**conf)))


def in_force(fleet, name):
    found = runtime_settings.read_settings(fleet.scheduler, Settings())
    return next(setting.value for setting in found if setting.name == name)


def change(fleet, **values):
    changes = {name: str(value) for name, value in values.items()}
    return runtime_settings.change_settings(fleet.scheduler, Settings(), changes)


def first_of(fleet, *jobs):
    """Publish jobs (name, options) behind a busy slot. Return a function that frees it and returns the next claim."""
    fleet.join("worker", "pdf", "excel")
    fleet.publish("busy", "pdf")
    (claim,) = fleet.inbox("worker")
    for name, options, age_s in jobs:
        fleet.publish(name, **{"type_": "pdf", **options})
        fleet.scheduler.advance(age_s)
    return lambda: [each.job_id for each in fleet.end("worker", claim)]


# -- each setting applies to the next claim


@pytest.mark.parametrize(
    ("change_of", "jobs", "before", "after"),
    [
        ({"priority_weight": 0}, [("old", {}, 1), ("urgent", {"priority": 1}, 0)], "urgent", "old"),
        ({"age_weight": 2000}, [("old", {}, 1), ("urgent", {"priority": 1}, 0)], "urgent", "old"),
        ({"on_demand_weight": 0}, [("old", {}, 1), ("asked", {"on_demand": True}, 0)], "asked", "old"),
        (
            {"on_demand_age_weight": 2000},
            [("urgent", {"priority": 10}, 0), ("asked", {"on_demand": True}, 4)],
            "urgent",
            "asked",
        ),
        (
            {"on_demand_age_cap": 0},
            [("urgent", {"priority": 5}, 0), ("asked", {"on_demand": True}, 60)],
            "asked",
            "urgent",
        ),
        ({"priority_order": "lower-first"}, [("ten", {"priority": 10}, 0), ("zero", {}, 0)], "ten", "zero"),
        ({"priority_percentage": 0}, [("old", {}, 1), ("urgent", {"priority": 10}, 0)], "urgent", "old"),
    ],
)
def test_change_applies_to_the_next_claim(fleet, redis_client, change_of, jobs, before, after):
    release = first_of(fleet, *jobs)
    assert release() == [before]
    redis_client.flushall()
    fleet.scheduler.advance(0)
    release = first_of(fleet, *jobs)
    lanes = {key: redis_client.dump(key) for key in redis_client.scan_iter() if b"lane" in key or b"job" in key}
    change(fleet, **change_of)
    assert lanes == {key: redis_client.dump(key) for key in lanes}, "no pending job is touched"
    assert release() == [after]


@pytest.mark.parametrize(("rarity", "first"), [("capacity", "rare"), ("free", "old")])
def test_rarity_counts_live_or_free_slots(fleet, rarity, first):
    """Eight busy slots serve excel. The only free slot serves excel and pdf."""
    fleet.join("busy", "excel", slots=8)
    for number in range(8):
        fleet.publish(f"busy{number}", "excel")
    fleet.publish("old", "excel")
    fleet.scheduler.advance(1)
    fleet.publish("rare", "pdf")
    fleet.join("worker", "pdf", "excel", settings={"rarity": rarity})
    assert fleet.jobs("worker") == [first]


def test_percentage_of_claims_is_by_age(fleet):
    """At 75, every fourth claim takes the oldest job, regardless of the scores."""
    change(fleet, priority_percentage=75)
    for number in range(8):
        fleet.publish(f"old{number}", "pdf")
        fleet.scheduler.advance(0.001)
    for number in range(8):
        fleet.publish(f"urgent{number}", "pdf", priority=10)
        fleet.scheduler.advance(0.001)
    fleet.join("worker", "pdf", slots=8, settings={"priority_percentage": 75})
    claimed = [job.rstrip("0123456789") for job in fleet.jobs("worker")]
    assert claimed == ["urgent", "old", "urgent", "urgent", "urgent", "old", "urgent", "urgent"]


# -- precedence of values


def test_run_time_change_wins_until_it_is_reset(fleet):
    join(fleet, "one")
    change(fleet, age_weight=8)
    join(fleet, "two")
    assert in_force(fleet, "age_weight") == 8
    (setting,) = runtime_settings.reset_settings(fleet.scheduler, Settings(), ["affinity_age_weight"])
    assert (setting.value, setting.conf, setting.changed_at_run_time) == (16, 16, False)


def test_run_time_change_wins_until_the_apps_value_changes(fleet):
    join(fleet, "one", age_weight=16)
    change(fleet, age_weight=8, rarity_weight=1)
    assert join(fleet, "two", age_weight=32).replaced == ["age_weight"]
    assert in_force(fleet, "age_weight") == 32
    assert in_force(fleet, "rarity_weight") == 1, "that one it did not change"


def test_change_before_any_worker_joined_wins_too(fleet):
    change(fleet, age_weight=8)
    join(fleet, "one", age_weight=16)
    assert in_force(fleet, "age_weight") == 8
    runtime_settings.reset_settings(fleet.scheduler, Settings(), ["age_weight"])
    assert in_force(fleet, "age_weight") == 16


def test_rejoining_worker_does_not_restore_an_old_value(fleet):
    join(fleet, "old", age_weight=16)
    join(fleet, "new", age_weight=32)
    assert join(fleet, "old", age_weight=16).replaced == []
    assert in_force(fleet, "age_weight") == 32


def test_two_apps_do_not_alternate_their_values(fleet):
    join(fleet, "one", app="shop", age_weight=16)
    assert join(fleet, "two", app="billing", age_weight=8).replaced == ["age_weight"]
    assert join(fleet, "three", app="shop", age_weight=16).replaced == []
    assert in_force(fleet, "age_weight") == 8, "the value that changed last"
    change(fleet, age_weight=4)
    assert join(fleet, "four", app="other", age_weight=2).replaced == ["age_weight"]
    assert in_force(fleet, "age_weight") == 4, "nobody's own value changed"


def test_settings_survive_a_restart_of_the_server(tmp_path):
    with EmbeddedServer(directory=tmp_path, options=("--appendonly", "yes", "--appendfsync", "always")) as server:
        scheduler = Scheduler(redis.Redis.from_url(server.url), Keys())
        scheduler.join(JoinArguments("one", "one@host", ["pdf"], 1), shared_settings(Settings()))
        runtime_settings.change_settings(scheduler, Settings(), {"age_weight": "8"})
        server.kill()
        server.start()
        scheduler.close()
        (setting,) = [
            each for each in runtime_settings.read_settings(scheduler, Settings()) if each.name == "age_weight"
        ]
        scheduler.close()
        assert (setting.value, setting.conf) == (8, 16)


# -- accepted values


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("age_weight", "0", f"{AGE_WEIGHT_MUST} '0'"),
        ("affinity_age_weight", "fast", f"{AGE_WEIGHT_MUST} 'fast'"),
        (
            "priority_weight",
            "nan",
            "affinity_priority_weight must be a number of points, 0 or more, up to 1,000,000, got: 'nan'",
        ),
        ("priority_percentage", "101", f"{PERCENTAGE_MUST} '101'"),
        ("priority_percentage", "9.5", f"{PERCENTAGE_MUST} '9.5'"),
        ("rarity", "none", "affinity_rarity must be 'capacity' or 'free', got: 'none'"),
        ("rarity", "5", "affinity_rarity must be 'capacity' or 'free', got: '5'"),
        (
            "heartbeat_interval",
            "5",
            "affinity_heartbeat_interval can only be set in app.conf; changeable at run time: ",
        ),
        ("worker_timeout", "9", "affinity_worker_timeout must be at least twice affinity_heartbeat_interval (5 s)"),
        ("age_weigth", "9", "unknown setting 'affinity_age_weigth'; did you mean 'affinity_age_weight'?"),
    ],
)
def test_invalid_change_is_named_and_changes_nothing(fleet, redis_client, name, value, message):
    join(fleet, "one")
    before = redis_client.hgetall(Keys().key("settings"))
    with pytest.raises(SettingError, match=re.escape(message)):
        runtime_settings.change_settings(fleet.scheduler, Settings(), {"rarity_weight": "7", name: value})
    assert redis_client.hgetall(Keys().key("settings")) == before


# -- the command, and the log of workers


def test_command_shows_and_changes_settings(valkey, fleet):
    join(fleet, "one", app="typed")
    shown = affinity(valkey.url, "settings").stdout
    assert re.search(r"affinity_age_weight +16 +16 +16", shown)
    run = affinity(valkey.url, "settings", "set", "age_weight", "8", "affinity_rarity", "free")
    assert run.returncode == 0, run.stderr
    assert re.search(r"affinity_age_weight +8 +16 +16 +changed at run time; a reset restores 16", run.stdout)
    found = {each["name"]: each for each in json.loads(affinity(valkey.url, "settings", "--json").stdout)}
    assert (found["age_weight"]["value"], found["age_weight"]["changed_at_run_time"]) == (8, True)
    assert found["rarity"]["value"] == "free"
    assert affinity(valkey.url, "settings", "reset", "age_weight").returncode == 0
    assert in_force(fleet, "age_weight") == 16
    affinity(valkey.url, "settings", "reset", "--all")
    assert in_force(fleet, "rarity") == "capacity"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["set", "age_weight", "0"], f"{AGE_WEIGHT_MUST} '0'"),
        (["set", "age_weight"], "a value is missing for 'age_weight'"),
        (["reset"], "give the names of settings, or --all"),
        (["reset", "nothing"], "unknown setting 'affinity_nothing'"),
    ],
)
def test_invalid_command_names_the_accepted_values(valkey, fleet, words, message):
    run = affinity(valkey.url, "settings", *words)
    assert run.returncode != 0
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_workers_log_changes_and_disagreeing_apps(valkey, fleet, redis_client):
    env = {"LEDGER": "/dev/null", "HEARTBEAT_INTERVAL": "0.2"}
    first = start_worker(APP, valkey.url, ["pdf"], pool="solo", env=env)
    wait_until(lambda: redis_client.zcard(Keys().key("heartbeats")) == 1, 20, first.log())
    change(fleet, age_weight=8)
    first.wait_for("affinity_age_weight is now 8 (changed at run time); it was 16", 10)

    second = start_worker(APP, valkey.url, ["pdf"], pool="solo", env={**env, "MAX_DELIVERIES": "3"})
    second.wait_for("affinity_max_deliveries in this worker's app.conf differs from the value in force", 20)
    first.wait_for("affinity_max_deliveries is 3 in the app.conf of another app", 10)
    first.wait_for("and 20 in ours", 1)


# -- unserved types


def test_publisher_is_warned_once_per_unserved_type(load_app, valkey, redis_client, caplog):
    app = load_app(APP)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            app.send_task("any.task", queue="drawing-nobody-serves")
        app.send_task("any.task", queue="music-nobody-serves")
        app.send_task("any.task", queue="later-nobody-serves", countdown=60)
    warned = [record.getMessage() for record in caplog.records if "No live worker serves" in record.getMessage()]
    assert [message.partition(":")[0] for message in warned] == [
        "No live worker serves type 'drawing-nobody-serves'",
        "No live worker serves type 'music-nobody-serves'",
    ]
    assert redis_client.hget(Keys().key("counters"), "unserved") == b"4"


def test_jobs_of_an_unserved_type_start_once_served(fleet):
    for number in range(3):
        fleet.publish(f"job{number}", "drawing")
        fleet.scheduler.advance(1)
    fleet.join("late", "drawing", slots=3)
    assert fleet.jobs("late") == ["job0", "job1", "job2"]


def test_unserved_jobs_block_no_other(fleet):
    for number in range(3):
        fleet.publish(f"unserved{number}", "drawing", priority=10, on_demand=True)
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    assert fleet.jobs("worker") == ["job"]


def test_limits_by_key_are_changed_removed_and_reset(fleet, redis_client):
    join(fleet, "worker", limits={"crawl:*": 8, "type:pdf": 20})
    assert in_force(fleet, "limits") == "type:pdf=20 crawl:*=8"
    (changed,) = change(fleet, limits="a=1 crawl:*=2")
    assert (changed.value, changed.conf, changed.changed_at_run_time) == (
        "a=1 crawl:*=2",
        "type:pdf=20 crawl:*=8",
        True,
    )
    assert redis_client.hget(Keys().key("settings"), "limits") == b"a=1 crawl%3A*=2"
    for none in ("none", ""):
        (changed,) = change(fleet, limits=none)
        assert (changed.value, changed.changed_at_run_time) == ("none", True)
        assert redis_client.hget(Keys().key("settings"), "limits").split() == []
    runtime_settings.reset_settings(fleet.scheduler, Settings(), ["limits"])
    assert in_force(fleet, "limits") == "type:pdf=20 crawl:*=8"
    redis_client.hset(Keys().key("settings"), "limits", "spoiled")
    assert in_force(fleet, "limits") == "none"
