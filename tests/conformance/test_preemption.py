"""Invariants of preemption (with the reference, and an independent ledger)."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_affinity.clock import SECOND_US
from celery_affinity.schema.job_record import NewJob
from tests.conformance.reference import keys, preemption
from tests.conformance.reference.reference import Reference

TICK_US = 1_400_000
TENANTS = ("a", "b", "c")
EXEMPT_US, MAX_STOPS = 60 * SECOND_US, 3


class Fleet:
    """Workers with distinct slots. A ledger has each stop: time, slot, job, and tenant."""

    def __init__(self, slots):
        self.reference, self.now_us = Reference(), 10**15
        self.slots = {}  # (worker, slot) -> (job id, fencing token, time of its normal end)
        self.stops_in, self.stops_of = defaultdict(list), defaultdict(int)
        self.published = 0
        for number, several in enumerate(slots):
            self.join(f"w{number}", several)

    def join(self, name, slots):
        given = {"worker_timeout_us": str(10**15), "tenants": "a=max:none,min:1"}
        common = {"types": ["pdf"], "other": 0, "app": "", "stops": "force", "settings": given}
        self.reference.join(name, name=name, slots=slots, now_us=self.now_us, **common)

    def die(self, name):
        """Kill the worker: its jobs are reclaimed, and another worker replaces it."""
        slots = self.reference.workers[name].slots
        self.slots = {place: job for place, job in self.slots.items() if place[0] != name}
        self.reference.recover(name, now_us=self.now_us)
        self.join(f"{name}'", slots)

    def publish(self, tenant, priority, takes_us, may_be_stopped):
        self.published += 1
        more = " preemptible=1" if may_be_stopped else ""
        job_id = f"{tenant}{self.published}$"
        rules = f"key=tenant%3A{tenant} quota=settings{more}"
        job = NewJob(job_id, "pdf", str(takes_us), task_id=job_id, task_name="t", priority=priority, rules=rules)
        self.reference.publish([job], now_us=self.now_us)

    def read(self):
        """Let workers read their inboxes; a job begins in a free slot."""
        signs = []
        for worker in self.reference.workers.values():
            while worker.inbox:
                delivery = worker.inbox.pop(0)
                if isinstance(delivery, str):
                    signs += [delivery.split()] if delivery.startswith("\npreempt") else []
                    continue
                place = next((worker.id, slot) for slot in range(worker.slots) if (worker.id, slot) not in self.slots)
                self.slots[place] = delivery.job_id, delivery.fence, self.now_us + int(delivery.message)
        return signs

    def sync(self):
        for worker in self.reference.workers.values():
            held = [(job_id, fence, 0) for job_id, fence in worker.claims.items()]
            self.reference.sync(worker.id, held, slots=worker.slots, other=0, draining=False, now_us=self.now_us)

    def end(self, place, outcome):
        job_id, fence, _ = self.slots.pop(place)
        self.reference.release(place[0], "1", [(job_id, fence, outcome)], inline=False, now_us=self.now_us)

    def end_those_that_are_over(self):
        for place, (_, _, ends_us) in [*self.slots.items()]:
            if ends_us <= self.now_us:
                self.end(place, "acked")

    def tick(self):
        """Tick, and check that each order is justified."""
        before = dict(self.reference.stop_orders)
        self.reference.tick(now_us=self.now_us)
        for job_id, stop in self.reference.stop_orders.items():
            if job_id not in before:
                self._is_just(self.reference.jobs[job_id], stop)
        for key in {stop.key for stop in self.reference.stop_orders.values()}:
            new = [
                each for each in self.reference.stop_orders.values() if each.key == key and each.job_id not in before
            ]
            assert not new or self.left_of(key, without_ordered=False) + len(new) <= self.minimum(key)

    def _is_just(self, victim, stop):
        key = preemption.tenant_of(victim)
        assert victim.rules.endswith("preemptible=1")
        assert not victim.acked
        assert self.left_of(key, without_ordered=True) >= self.minimum(key), "stops bring the victim's tenant too low"
        assert self.left_of(stop.key, without_ordered=False) < self.minimum(stop.key)
        assert not any(worker.free for worker in self.reference.workers.values())

    def left_of(self, key, *, without_ordered):
        held = [job.id for job in keys.holders(self.reference, key)]
        return sum(job_id not in self.reference.stop_orders or not without_ordered for job_id in held)

    def minimum(self, key):
        return preemption._min_of(self.reference, key)

    def stop(self, job_id, how):
        """A worker obeys, ignores the message, ends the job in time, or dies."""
        place = next((place for place, (each, *_) in self.slots.items() if each == job_id), None)
        if place is None:
            return
        job = self.reference.jobs[job_id]
        before = job.deliveries, job.enqueued_us, job.preemptions
        if how == "finishes":
            self.end(place, "acked")
        elif how == "dies":
            self.die(place[0])
        elif how == "obeys":
            last = self.stops_in[place][-1:]
            assert not last or self.now_us - last[0] >= EXEMPT_US, "a slot is vacated too often"
            first = [job for job in keys.standing(self.reference, {"pdf"}) if keys.goes_first(self.reference, job)]
            self.end(place, f"preempted {SECOND_US}")
            self.stops_in[place].append(self.now_us)
            self.stops_of[job_id] += 1
            assert self.stops_of[job_id] <= MAX_STOPS
            assert (job.deliveries, job.enqueued_us, job.preemptions - 1) == before
            assert job.message is not None
            assert not first or any(each.state == "claimed" for each in first), "the slot went to another"


JOBS = st.tuples(st.sampled_from(TENANTS), st.integers(0, 2), st.integers(1, 90), st.sampled_from([True, True, False]))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_stops_are_justified_and_limited_per_job_and_slot(data):
    fleet = Fleet(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    for _ in range(data.draw(st.integers(10, 30))):
        for tenant, priority, takes_s, may_be_stopped in data.draw(st.lists(JOBS, max_size=3)):
            fleet.publish(tenant, priority, takes_s * SECOND_US, may_be_stopped)
        if data.draw(st.integers(0, 9)) == 0:
            minima = data.draw(st.lists(st.integers(0, 3), min_size=3, max_size=3))
            words = [f"{tenant}=max:none,min:{least}" for tenant, least in zip(TENANTS, minima, strict=True)]
            fleet.reference.configure({"tenants": " ".join(words)}, now_us=fleet.now_us)
        fleet.now_us += data.draw(st.sampled_from([TICK_US, TICK_US, 5 * SECOND_US, 21 * SECOND_US]))
        fleet.end_those_that_are_over()
        fleet.read()
        fleet.sync()
        fleet.tick()
        for _, job_id, _, _ in fleet.read():
            if job_id in fleet.reference.stop_orders:
                fleet.stop(job_id, data.draw(st.sampled_from(["obeys", "obeys", "ignores", "finishes", "dies"])))
        fleet.read()


def test_flapping_load_stops_slots_and_jobs_rarely():
    """A tenant repeatedly needs its minimum for a second: a slot is stopped once a minute, a job three times."""
    fleet = Fleet([2])
    for number in range(12):
        fleet.publish("b", number % 2, 10_000 * SECOND_US, True)
    fleet.read()
    began_us = fleet.now_us
    for _ in range(400):
        if not any(
            job.state in ("pending", "claimed") and job.id.startswith("a") for job in fleet.reference.jobs.values()
        ):
            fleet.publish("a", 0, SECOND_US, False)
        fleet.now_us += TICK_US
        fleet.end_those_that_are_over()
        fleet.read()
        fleet.sync()
        fleet.tick()
        for _, job_id, _, _ in fleet.read():
            fleet.stop(job_id, "obeys")
        fleet.read()
    minutes = (fleet.now_us - began_us) / 60 / SECOND_US
    stops = [len(times) for times in fleet.stops_in.values()]
    assert sum(stops) > 4
    assert all(number <= minutes + 1 for number in stops)
    assert max(fleet.stops_of.values()) <= MAX_STOPS
