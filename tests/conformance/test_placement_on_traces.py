"""Placement and hints on random traces of workers that join, die and end jobs (with the reference)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_affinity.clock import SECOND_US
from celery_affinity.schema.constants import MAX_HINTS
from celery_affinity.schema.job_record import NewJob
from tests.conformance.reference.reference import Reference

from .invariants import check_placements

TYPES, HINTS = "ab", ("", "m", "m", "n")
WEIGHTED = {"placement": "weighted", "sample_size": "0"}
WEIGH_NOTHING = {f"placement_{name}_weight": "0" for name in ("priority", "locality", "free")}
BONUS = {"locality_bonus": "80"}

served = st.sets(st.sampled_from(TYPES), min_size=1).map(sorted)
joins = st.tuples(st.just("join"), served, st.integers(1, 2), st.sampled_from([0, 0, 1]))
publishes = st.tuples(
    st.just("publish"), st.sampled_from(TYPES), st.booleans(), st.integers(0, 2), st.sampled_from(HINTS)
)
ends = st.tuples(st.just("end"), st.integers(0, 9))
others = st.tuples(st.sampled_from(["die", "let_pass"]), st.integers(1, 9))
traces = st.tuples(
    st.lists(joins, min_size=2, max_size=4),
    st.lists(st.one_of(publishes, publishes, ends, ends, ends, others, joins), min_size=20, max_size=60),
).map(lambda parts: [*parts[0], *parts[1]])


class Trace:
    """Steps of a trace, one after another. `granted` lists all claims as (job, worker)."""

    def __init__(self, given_settings, *, hinted=True, by_points=False):
        self.reference, self.settings, self.now_us = Reference(), given_settings, 10**12
        self.hinted, self.by_points = hinted, by_points
        self.published = self.joined = self.last_fence = 0
        self.granted = []

    def run(self, steps):
        for name, *arguments in steps:
            self.now_us += 1000
            getattr(self, name)(*arguments)
            self.see_what_was_granted()
        return self.granted

    def see_what_was_granted(self):
        new = [job for job in self.reference.jobs.values() if (job.fence or 0) > self.last_fence]
        new.sort(key=lambda job: job.fence)
        check_placements(self.reference, new, set())
        self.last_fence = max([self.last_fence, *(job.fence for job in new)])
        self.granted += [(job.id.rstrip("~"), job.worker) for job in new]
        for worker in self.reference.workers.values():
            worker.inbox.clear()

    def join(self, types, slots, priority):
        name = f"w{self.joined:02}"
        self.joined += 1
        common = {"name": name, "other": 0, "app": "", "stops": "", "settings": self.settings}
        self.reference.join(name, types=types, slots=slots, priority=priority, now_us=self.now_us, **common)
        self.reference.claim(types, now_us=self.now_us)

    def publish(self, type_, on_demand, priority, hint):
        job_id, rules = f"job{self.published:03}", ""
        self.published += 1
        if hint and self.hinted:
            job_id, rules = f"{job_id}~", f"near={hint}"
        job = NewJob(job_id, type_, "", on_demand=on_demand, priority=priority, rules=rules)
        most = self.most_points(type_, hint) if self.by_points else None
        self.reference.publish([job], now_us=self.now_us)
        worker = self.reference.jobs[job_id].worker
        assert most is None or worker == most, f"{job_id} went to {worker}, and {most} has the most points"

    def most_points(self, type_, hint):
        """Return the worker for a job by the description in the docs, or None if no slot is free."""
        free = [each for each in self.reference.workers.values() if type_ in each.types and each.free]
        fewest = min((len(each.types) for each in free), default=0)
        best = min(
            (each for each in free if len(each.types) == fewest),
            key=lambda each: (10 * each.priority - 5 * (hint in each.hints) - each.free, each.free_since_us, each.id),
            default=None,
        )
        return best and best.id

    def end(self, nth):
        held = [(worker, *claim) for worker in self.reference.workers.values() for claim in worker.claims.items()]
        if held:
            worker, job_id, fence = held[nth % len(held)]
            self.reference.release(worker.id, "1", [(job_id, fence, "acked")], inline=False, now_us=self.now_us)

    def die(self, nth):
        if len(self.reference.workers) > 1:
            name = [*self.reference.workers][nth % len(self.reference.workers)]
            self.reference.recover(name, now_us=self.now_us)
            self.reference.claim(TYPES, now_us=self.now_us)

    def let_pass(self, seconds):
        self.now_us += seconds * SECOND_US


@settings(max_examples=25, deadline=None)
@given(traces)
def test_hints_change_no_claim_without_a_bonus(trace):
    assert Trace({}).run(trace) == Trace({}, hinted=False).run(trace)


@settings(max_examples=25, deadline=None)
@given(traces)
def test_zero_weights_equal_the_idle_placement(trace):
    assert Trace(WEIGHTED | WEIGH_NOTHING).run(trace) == Trace({}).run(trace)


@settings(max_examples=25, deadline=None)
@given(traces, st.sampled_from([{}, BONUS]))
def test_job_goes_to_the_specialist_with_the_most_points(trace, bonus):
    Trace(WEIGHTED | bonus, by_points=True).run(trace)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, MAX_HINTS + 5), max_size=3 * MAX_HINTS))
def test_worker_holds_the_hints_of_its_last_ten_jobs(numbers):
    trace = Trace({})
    trace.run([("join", TYPES[:1], 1, 0)])
    for number in numbers:
        trace.run([("publish", TYPES[0], False, 0, f"h{number}"), ("end", 0)])
    latest = list(dict.fromkeys(f"h{number}" for number in reversed(numbers)))[:MAX_HINTS]
    assert trace.reference.workers["w00"].hints.keys() == {*latest}
