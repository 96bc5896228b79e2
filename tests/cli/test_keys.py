"""`celery affinity keys`, run as a user runs it."""

import json

import pytest

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.command import affinity
from ..support.scripted_fleet import ScriptedFleet

RULES = "key=city%3AHH limit=1"


@pytest.fixture
def fleet(redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "pdf", slots=3)
    for number in range(3):
        fleet.publish(f"job{number}!", "pdf", rules=RULES)
    fleet.publish("other!", "pdf", rules="key=host%3Aa limit=4")
    return fleet


def test_keys_are_listed(valkey, fleet):
    lines = affinity(valkey.url, "keys").stdout.splitlines()
    assert lines[0].split() == ["key", "limit", "held", "waiting", "oldest", "wait", "held", "by"]
    assert lines[1].split()[:4] == ["city:HH", "1", "1", "2"]
    assert "task-job0! (tests.task) on worker@host for " in lines[1]
    assert lines[2].split()[:5] == ["host:a", "4", "1", "0", "-"]
    assert [line.split()[0] for line in affinity(valkey.url, "keys", "host:*").stdout.splitlines()] == ["key", "host:a"]
    assert affinity(valkey.url, "keys", "nothing").stdout == "no job holds such a key or waits for one\n"
    assert affinity(valkey.url, "keys", "--limit", "1").stdout.splitlines()[-1].startswith("there may be more: ")
    found = json.loads(affinity(valkey.url, "keys", "list", "city:*", "--json").stdout)
    assert [(each["key"], each["has_room"], each["holder"]["task_id"]) for each in found["keys"]] == [
        ("city:HH", False, "task-job0!")
    ]


def test_a_key_is_shown(valkey, fleet):
    lines = affinity(valkey.url, "keys", "show", "city:HH").stdout.splitlines()
    rows = {line[:12].strip(): line[12:] for line in lines}
    assert rows["limit"] == "1 in force"
    assert rows["declared"] == "1 by tests.task"
    assert rows["held"].startswith("task-job0! (tests.task) on worker@host for ")
    assert rows["waiting"] == "2 of pdf priority 0, queued"
    unknown = affinity(valkey.url, "keys", "show", "nobody's")
    assert unknown.returncode == 1
    assert 'no job holds the key "nobody\'s" or waits for it' in unknown.stderr


def test_limits_are_set_and_reset(valkey, fleet, redis_client):
    lines = affinity(valkey.url, "keys", "set", "city:*", "2").stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [["city:*", "2", "-"]]
    assert redis_client.zcard(Keys().key("held", "city%3AHH")) == 2, "what waits may start at once"
    assert json.loads(affinity(valkey.url, "keys", "set", "a b", "0", "--json").stdout) == {"city:*": 2, "a b": 0}
    assert redis_client.hget(Keys().key("settings"), "limits") == b"a%20b=0 city%3A*=2"
    rated = json.loads(affinity(valkey.url, "keys", "set", "rate:mail:*", "100/m", "--json").stdout)
    assert rated == {"city:*": 2, "a b": 0, "rate:mail:*": "100/m"}
    for pattern, limit in (("rate:mail:*", "5"), ("city:*", "100/m"), ("city:*", "many"), ("rate:*", "0/s")):
        run = affinity(valkey.url, "keys", "set", pattern, limit)
        assert run.returncode == 1
        assert "affinity_limits must be limits by key such as " in run.stderr
    affinity(valkey.url, "keys", "reset", "rate:mail:*")
    run = affinity(valkey.url, "keys", "reset", "host")
    assert run.returncode == 1
    assert "no limit is set for 'host': set are a b, city:*" in run.stderr
    affinity(valkey.url, "keys", "reset", "a b")
    assert affinity(valkey.url, "keys", "reset", "city:*").stdout == "no limit is set; the tasks' own limits apply\n"
    assert affinity(valkey.url, "keys", "show", "city:HH").stdout.splitlines()[1] == "limit       1 in force"


@pytest.mark.parametrize("pattern", ["rate:x", ""])
def test_what_is_no_pattern_is_refused(valkey, fleet, pattern):
    run = affinity(valkey.url, "keys", "set", pattern, "2")
    assert run.returncode == 1
    assert "affinity_limits must be limits by key" in run.stderr
