"""After any damage, repairs restore what the hashes of jobs and workers imply (`tests/support/projections.py`)."""

import random

import pytest

from celery_affinity.schema.constants import REPAIRED_EVERY_US

from ..support import damage
from ..support.busy_fleet import Scene
from ..support.projections import Projections

#: Each repair checks the first member of a sorted set, and another member that the time selects. This number of repairs
#: checks all members.
REPAIRS = 30


def violations_after_damage(client, seeds, max_damages):
    """Return a line for each violation after random damage, for each seed."""
    lines = []
    for seed in seeds:
        client.flushall()
        scene, rng = Scene(client), random.Random(seed)
        done = damage.at_random(scene, rng, rng.randint(1, max_damages))
        for _ in range(REPAIRS):
            scene.scheduler.repair(thorough=True)
            scene.scheduler.advance(REPAIRED_EVERY_US / 1_000_000)
        if scene.scheduler.repair(thorough=True):
            lines.append(f"seed {seed}: {[*map(str, done)]}: repairs find something without an end")
        lost = set().union(*(each.lost for each in done))
        lines += [f"seed {seed}: {[*map(str, done)]}: {line}" for line in Projections(client).violations(lost)]
    return lines


def test_undamaged_fleet_has_no_violations(redis_client):
    scene = Scene(redis_client)
    assert Projections(redis_client).violations() == []
    for _ in range(3):
        scene.do_everything()
        assert Projections(redis_client).violations() == []


@pytest.mark.slow_on_redis
def test_repairs_restore_derived_keys_after_random_damage(redis_client):
    assert violations_after_damage(redis_client, range(10), max_damages=6) == []


@pytest.mark.slow  # some minutes of work
@pytest.mark.parametrize("part", range(4))
def test_repairs_restore_derived_keys_after_much_random_damage(redis_client, part):
    assert violations_after_damage(redis_client, range(1000 + 100 * part, 1100 + 100 * part), max_damages=12) == []
