"""After any damage, repairs restore what the hashes of jobs and workers imply (`tests/support/projections.py`)."""

import random
from collections import Counter

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.schema.constants import REPAIRED_EVERY_US
from celery_affinity.schema.keys import Keys

from ..conformance.machine import Conformance
from ..conformance.walk import run
from ..conformance.wire import Wire
from ..support import damage
from ..support.busy_fleet import Scene
from ..support.projections import Projections

#: Each repair checks the first member of a sorted set, and another member that the time selects. This number of repairs
#: checks all members.
REPAIRS = 30


class Walked:
    """A fleet after random moves, with every rule: the fleet of the conformance tests with this *seed*."""

    keys_of = Scene.keys_of

    def __init__(self, client, seed, steps):
        self.client = client

        class Moves(Conformance):
            def end(self):
                self.compare_with_server()

        with Wire(client) as wire:
            moves = Moves(wire, Counter())
            run(lambda: moves, steps=steps, steps_in_a_run=steps, seed=seed, shrink=False)
        self.scheduler = FakeClockScheduler(client, Keys())
        self.scheduler.now_us = moves.now_us
        self.scheduler.advance(0)


def violations_after_damage(client, make, seeds, max_damages):
    """Return a line for each violation after random damage to the fleet that *make* returns, for each seed."""
    lines = []
    for seed in seeds:
        client.flushall()
        scene, rng = make(client, seed), random.Random(seed)
        done = damage.at_random(scene, rng, rng.randint(1, max_damages))
        for _ in range(2):
            scene.scheduler.repair(thorough=True)
            scene.scheduler.tick()  # before workers time out: a repair leaves the limits of keys to it
        for _ in range(REPAIRS):
            scene.scheduler.repair(thorough=True)
            scene.scheduler.advance(REPAIRED_EVERY_US / 1_000_000)
        lost, found = set().union(*(each.lost for each in done)), []
        before = damage.everything(client)
        if endless := scene.scheduler.repair(thorough=True):
            found.append(f"repairs find something without an end: {endless[:3]}")
        after = damage.everything(client)
        changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
        found += [f"a later repair changes {key}" for key in sorted(changed)]
        found += Projections(client).violations(lost)
        lines += [f"seed {seed}: {[*map(str, done)]}: {line}" for line in found]
    return lines


def busy(client, seed):
    return Scene(client)


def walked(client, seed):
    return Walked(client, seed, random.Random(seed).randint(20, 120))


def test_undamaged_fleet_has_no_violations(redis_client):
    scene = Scene(redis_client)
    assert Projections(redis_client).violations() == []
    for _ in range(3):
        scene.do_everything()
        assert Projections(redis_client).violations() == []


@pytest.mark.slow_on_redis
@pytest.mark.parametrize("make", [busy, walked])
def test_repairs_restore_derived_keys_after_random_damage(redis_client, make):
    assert violations_after_damage(redis_client, make, range(10), max_damages=6) == []


@pytest.mark.slow  # some minutes of work
@pytest.mark.parametrize("make", [busy, walked])
@pytest.mark.parametrize("part", range(4))
def test_repairs_restore_derived_keys_after_much_random_damage(redis_client, make, part):
    seeds = range(1000 + 100 * part, 1100 + 100 * part)
    assert violations_after_damage(redis_client, make, seeds, max_damages=12) == []
