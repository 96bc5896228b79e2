"""`celery affinity check --repair`: what is wrong in Redis is said, and made again."""

import json

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.command import affinity
from ..support.scripted_fleet import ScriptedFleet


def test_a_wrong_count_is_said_by_a_dry_run_and_then_repaired(valkey, redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "pdf", slots=2)
    key, profile = Keys().key("free_slots"), redis_client.hkeys(Keys().key("profiles"))[0]

    def repair(*options):
        return affinity(valkey.url, "check", "--repair", *options)

    assert repair().stdout == "All keys agree: there is nothing to repair.\n"
    redis_client.hset(key, profile, 7)
    said = repair("--dry-run", "--json")
    found = json.loads(said.stdout)
    assert (said.returncode, found["repaired"]) == (1, False)
    assert found["found"] == [f"{profile.decode()} of {key}: 7 instead of 2"]
    assert redis_client.hget(key, profile) == b"7"
    assert repair().stdout == f"{profile.decode()} of {key}: 7 instead of 2\n1 found: all was repaired\n"
    assert redis_client.hget(key, profile) == b"2"
    assert affinity(valkey.url, "check", "--dry-run").returncode == 2
