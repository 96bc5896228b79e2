"""`celery affinity tenants`, run as a user runs it."""

import json

import pytest

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.command import affinity
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def fleet(redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.scheduler.configure({"tenants": "acme=max:1"})
    fleet.join("worker", "pdf", slots=4)
    for number in range(3):
        fleet.publish(f"job{number}$", "pdf", rules="key=tenant%3Aacme quota=settings")
    fleet.publish("other$", "pdf", rules="key=tenant%3Aother quota=settings")
    fleet.publish("keyed!", "pdf", rules="key=city limit=1")
    return fleet


def test_tenants_are_listed(valkey, fleet):
    lines = affinity(valkey.url, "tenants").stdout.splitlines()
    assert lines[0].split() == ["tenant", "min", "max", "slots", "waiting", "oldest", "wait"]
    assert [line.split()[:5] for line in lines[1:]] == [["acme", "-", "1", "1", "2"], ["other", "-", "-", "1", "0"]]
    assert [line.split()[0] for line in affinity(valkey.url, "tenants", "o*").stdout.splitlines()] == [
        "tenant",
        "other",
    ]
    assert affinity(valkey.url, "tenants", "nobody").stdout == "no job of such a tenant runs or waits\n"
    assert affinity(valkey.url, "tenants", "--limit", "1").stdout.splitlines()[-1].startswith("there may be more: ")


def test_quotas_are_set_and_reset(valkey, fleet, redis_client):
    lines = affinity(valkey.url, "tenants", "set", "acme", "--max", "2").stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [["acme", "2", "-"]]
    assert redis_client.zcard(Keys().key("held", "tenant%3Aacme")) == 2, "what waits may start at once"
    weighted = json.loads(affinity(valkey.url, "tenants", "set", "acme", "--weight", "3", "--json").stdout)
    assert weighted == {"acme": {"max": 2, "min": 0, "weight": 3}}
    lines = affinity(valkey.url, "tenants", "set", "acme", "--min", "2").stdout.splitlines()
    assert lines[1].split() == ["acme", "2,", "min", "2,", "weight", "3", "-"]
    others = json.loads(affinity(valkey.url, "tenants", "set", "*", "--max", "none", "--json").stdout)
    assert others["*"] == {"max": None, "min": 0, "weight": 1}
    assert redis_client.hget(Keys().key("settings"), "tenants") == b"*=max:none acme=max:2,min:2,weight:3"
    affinity(valkey.url, "tenants", "reset", "*")
    assert affinity(valkey.url, "tenants", "reset", "acme").stdout.startswith("no quota is set")
    unknown = affinity(valkey.url, "tenants", "reset", "acme")
    assert unknown.returncode == 1
    assert "no quota is set for 'acme': none is set" in unknown.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["acme"], "give at least one of --max, --min and --weight"),
        (["acme", "--max", "many"], "a whole number, 0 or more, up to 1,000,000,000, or 'none', got: 'many'"),
        (["acme", "--max", "-1"], "got: '-1'"),
        (["acme", "--weight", "0"], "'--weight'"),
        (["acme", "--min", "-1"], "'--min'"),
        (["acme", "--min", "2"], "min of a tenant must be a whole number up to its max, 1, got: 2"),
        (["x" * 300, "--max", "1"], "affinity_tenants must be quotas by tenant"),
    ],
)
def test_what_is_no_quota_is_refused_and_changes_nothing(valkey, fleet, redis_client, words, complaint):
    done = affinity(valkey.url, "tenants", "set", *words)
    assert done.returncode != 0
    assert complaint in " ".join(done.stderr.split())
    assert redis_client.hget(Keys().key("settings"), "tenants") == b"acme=max:1"
