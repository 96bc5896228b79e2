"""Fair shares of tenants whose jobs have different types: who starts when, on a fake clock."""

from collections import defaultdict
from heapq import heappop, heappush
from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet
from ..support.tenants import of

SHARES = {"tenant_turns": "share"}


class Simulation:
    """A fleet on a fake clock. A job's id is "tenant.number.type", and its run time is known in advance."""

    def __init__(self, redis_client, workers, **given_settings):
        redis_client.flushdb()
        self.fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
        self.fleet.scheduler.configure(SHARES | {"worker_timeout_us": "3600000000"} | given_settings)
        self.begin_us = self.fleet.now_us
        self.workers = [f"w{number}" for number in range(len(workers))]
        for worker, (types, slots) in zip(self.workers, workers, strict=True):
            self.fleet.join(worker, *types, slots=slots)
        self.seconds, self.running, self.number = {}, [], 0
        self.starts, self.used = {}, defaultdict(float)

    @property
    def now_s(self):
        return (self.fleet.now_us - self.begin_us) / 1e6

    def publish(self, tenant, type_, seconds, *, jobs=1, more="", **options):
        """*more*: further rules of the jobs, an exclusive key. Return the ids."""
        ids = []
        for _ in range(jobs):
            self.number += 1
            mark = "&" if more and tenant else "!" if more else "$" if tenant else ""
            rules = " ".join(rule for rule in (more, of(tenant) if tenant else "") if rule)
            ids.append(f"{tenant}.{self.number:05}.{type_}{mark}")
            self.seconds[ids[-1]] = seconds
            self.fleet.publish(ids[-1], type_, rules=rules, **options)
            self._begin()
        return ids

    def _begin(self):
        for worker in self.workers:
            for claim in self.fleet.inbox(worker):
                self.starts[claim.job_id] = self.now_s
                heappush(self.running, (self.now_s + self.seconds[claim.job_id], len(self.starts), worker, claim))

    def run(self, until_s):
        """Let jobs run until this time, with a tick per second."""
        while self.now_s < until_s:
            next_s = min(until_s, int(self.now_s + 1), *(end_s for end_s, *_ in self.running[:1]))
            self.fleet.scheduler.advance(next_s - self.now_s)
            while self.running and self.running[0][0] <= self.now_s + 1e-9:
                _, _, worker, claim = heappop(self.running)
                self.used[claim.job_id.partition(".")[0]] += self.seconds[claim.job_id]
                self.fleet.end(worker, claim, inline=False)
                self._begin()
            if self.now_s == int(self.now_s):
                self.fleet.scheduler.tick()
                self._begin()

    def used_so_far(self, tenant):
        its = [(end_s, claim) for end_s, _, _, claim in self.running if claim.job_id.startswith(f"{tenant}.")]
        return self.used[tenant] + sum(self.seconds[claim.job_id] - (end_s - self.now_s) for end_s, claim in its)


@pytest.mark.parametrize("type_", ["a", "b"])
def test_small_tenant_starts_soon_beside_a_flood_of_another_type(redis_client, type_):
    """One worker serves both types with four slots; the flood has 600 jobs of type a, of 0.2 s."""
    simulation = Simulation(redis_client, [(("a", "b"), 4)])
    simulation.publish("flood", "a", 0.2, jobs=600)
    simulation.run(1)
    ids = simulation.publish("small", type_, 0.2, jobs=10)
    simulation.run(4)
    assert max(simulation.starts[job_id] for job_id in ids) - 1 <= 1.5


MODES = ({"priority": 0}, {"priority": 5}, {"on_demand": True})
MIXED = [(("a", "b", "c"), 3), (("a", "b"), 2), (("a",), 1), (("b",), 1), (("c",), 1)]

#: Name -> settings, rules of the flood's jobs, and what an operator does.
VARIANTS = {
    "plain": ({}, "", None),
    "weights": ({"tenants": "flood=max:none,weight:3"}, "", None),
    "maximum": ({"tenants": "flood=max:4 small=max:3"}, "", None),
    "minimum": ({"tenants": "flood=max:none small=max:none,min:2"}, "", None),
    "key": ({}, "key=city%3AHH limit=5", None),
    "reserve": ({"reserve": "a:queued=1 b:queued=1"}, "", None),
    "pause": ({}, "", "type:c"),
    "preemption": ({"tenants": "small=max:none,min:2", "preemption_delay_us": "1000000"}, "", None),
    "limit": ({"limits": "type%3Aa=4 type%3Ab=4"}, "", None),
    "half-life": ({"tenant_half_life_us": "60000000"}, "", None),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("tenant", ["small", ""], ids=["tenant", "no tenant"])
def test_jobs_of_a_free_type_start_no_later_than_jobs_of_the_flooded_type(redis_client, variant, tenant):
    """With specialists and versatile workers, and jobs on demand and of several priorities on both sides."""
    given_settings, rules, paused = VARIANTS[variant]
    starts = {}
    for type_ in ("a", "b"):
        simulation = Simulation(redis_client, MIXED, **given_settings)
        for number in range(240):
            simulation.publish("flood", "a" if number % 6 else "c", 0.5, more=rules, **MODES[number % 3])
        if paused:
            simulation.fleet.scheduler.pause(paused)
        simulation.run(2)
        ids = [simulation.publish(tenant, type_, 0.5, **MODES[number % 3])[0] for number in range(10)]
        simulation.run(60)
        starts[type_] = sorted(simulation.starts[job_id] for job_id in ids)
    assert all(b <= a + 1e-6 for a, b in zip(starts["a"], starts["b"], strict=True)), starts


def test_specialists_that_run_ahead_do_not_delay_a_newcomer(redis_client):
    """Twelve specialists of type c are busy with one tenant; then a newcomer of type b meets a flood of type a."""
    simulation = Simulation(redis_client, [(("a", "b"), 2), *[(("c",), 1)] * 12])
    simulation.publish("busy", "c", 1.0, jobs=12 * 30)
    simulation.publish("flood", "a", 1.0, jobs=200)
    simulation.run(20)
    ids = simulation.publish("new", "b", 1.0, jobs=2)
    simulation.run(23)
    assert all(simulation.starts.get(job_id, 99) <= 21 + 1e-6 for job_id in ids)


def test_newcomer_of_two_types_is_not_charged_for_the_clock_of_one(redis_client):
    """Its claim by a specialist, whose clock is far ahead, does not put its jobs of the other type behind the flood."""
    simulation = Simulation(redis_client, [(("a", "b"), 1), *[(("c",), 1)] * 4])
    simulation.publish("busy", "c", 1.0, jobs=400)
    simulation.publish("flood", "a", 1.0, jobs=100)
    simulation.run(40.5)
    [other] = simulation.publish("new", "c", 10.0)
    simulation.run(41.5)
    assert simulation.starts[other] == 41, "it is still running, so its start tag is kept"
    ids = simulation.publish("new", "b", 1.0, jobs=1)
    simulation.run(46)
    assert simulation.starts.get(ids[0], 99) <= 42 + 1e-6


def test_night_of_batch_work_does_not_delay_the_tenants_users(redis_client):
    """Tenant a uses all slots for queued jobs; then b floods on demand, and a user of tenant a waits one job length."""
    simulation = Simulation(redis_client, [(("a", "b"), 2)])
    simulation.publish("a", "a", 1.0, jobs=120)
    simulation.run(50)
    simulation.publish("b", "b", 1.0, jobs=100, on_demand=True)
    simulation.run(53)
    ids = simulation.publish("a", "a", 1.0, on_demand=True)
    simulation.run(56)
    assert simulation.starts[ids[0]] <= 54 + 1e-6


def test_jobs_without_a_tenant_have_the_weight_of_the_setting(redis_client):
    simulation = Simulation(redis_client, [(("a", "b"), 3)], tenants='""=max:none,weight:2')
    simulation.publish("t", "a", 1.0, jobs=100)
    simulation.publish("", "b", 1.0, jobs=100)
    simulation.run(30)
    assert simulation.used[""] == pytest.approx(2 * simulation.used["t"], abs=6)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_eligible_tenant_is_behind_by_more_than_the_bound(valkey, redis_client, data):
    """The bound in docs/internals/proofs.md, with 2 to 6 types, for slots that all serve each tenant's types.

    Two tenants are compared if each slot that serves a type of one also serves a type of the other.
    """
    types = "abcdef"[: data.draw(st.integers(2, 6))]
    sets = data.draw(st.lists(st.sets(st.sampled_from(types), min_size=1), min_size=1, max_size=4))
    workers = [(tuple(sorted(its)), data.draw(st.integers(1, 2))) for its in [set(types), *sets]]
    tenants = {
        name: (sorted(data.draw(st.sets(st.sampled_from(types), min_size=1))), data.draw(st.integers(1, 3)))
        for name in ("f", "g", "h")
    }
    lengths = {name: data.draw(st.sampled_from([0.3, 1.0, 2.5])) for name in tenants}
    quotas = " ".join(f"{name}=max:none,weight:{weight}" for name, (_, weight) in tenants.items())
    simulation = Simulation(redis_client, [], tenants=quotas)
    slots = sum(number for _, number in workers)

    def publish_all():
        """Publish as many jobs of each tenant's types as the slots can start in a second."""
        for name, (its_types, _) in tenants.items():
            for type_ in its_types:
                simulation.publish(name, type_, lengths[name], jobs=1 + int(slots / lengths[name]))

    publish_all()
    simulation.workers = [f"w{number}" for number in range(len(workers))]
    for worker, (served, its_slots) in zip(simulation.workers, workers, strict=True):
        simulation.fleet.join(worker, *served, slots=its_slots)
    simulation._begin()
    for _ in range(6):
        publish_all()
        simulation.run(simulation.now_s + 1)
        for (one, (its, weight)), (other, (others, other_weight)) in permutations(tenants.items(), 2):
            fits = [served for served, _ in workers if not set(its).isdisjoint(served)]
            if all(not set(others).isdisjoint(served) for served in fits):
                lead = simulation.used_so_far(one) / weight - simulation.used_so_far(other) / other_weight
                assert lead <= slots * (lengths[one] / weight + lengths[other] / other_weight) + 1e-3
