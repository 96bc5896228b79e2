"""Every arrow against the reference: random steps on a real server, and after each the whole state, compared.

``make conformance`` runs it: ``CONFORMANCE_STEPS`` says how many steps, ``CONFORMANCE_SEED`` which.
"""

import os
import random
from collections import Counter
from itertools import count

import pytest
import redis
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from celery_affinity.keys import encode
from celery_affinity.reference import Reference
from celery_affinity.scripts import load

from .clocked import ClockedScheduler
from .mirror import KEYS, Server, expected, payload, profile

STEPS = int(os.environ.get("CONFORMANCE_STEPS", "10000"))
SEED = int(os.environ.get("CONFORMANCE_SEED") or random.randrange(2**32))
STEPS_IN_A_RUN = 100  # the state grows with the steps, and with it the cost of one

TYPES = ("pdf", "excel", "a {rare}: one")
WORKERS = ("w0", "w1", "w2", "w3", "w4")
NAMES = dict(zip(WORKERS, ("one@host", "two@host", "a b@host", "one@host", "five@host"), strict=True))
#: Where a job can be, but for the inboxes: what is there is claimed. Done is no place.
PLACES = tuple(KEYS.base + name for name in ("scheduled", "lane:", "claims:", "dead"))

types = st.sampled_from(TYPES)
some_types = st.sampled_from([TYPES[:1], TYPES[1:2], TYPES[2:], TYPES[:2], TYPES[:2], TYPES[1:], TYPES[1:], TYPES])
priorities = st.sampled_from([0, 0, 1, 5, 9, 10])
delays_us = st.sampled_from([0, 0, 0, 0, 0, 1, 1_000_000, 3_000_000, 64_000_000, -1_000_000])
#: On both sides of every limit of time: a tick lately, a silence that counts, a beat, a timeout; and back.
_S = 1_000_000
times_us = st.sampled_from(
    [_S, _S, _S, _S + 1, 3 * _S, 3 * _S, 3 * _S + 1, 5 * _S, 5 * _S, 5 * _S + 1, 64 * _S, _S // 2, 1, -_S]
)
slots = st.sampled_from([1, 1, 2, 3, 60])  # up to more than the moves of one call
others = st.sampled_from([0, 0, 0, 0, 0, 1, 3])
#: Which of the workers, or of the claims: the last few stand for one that is gone, or never was.
indexes = st.integers(0, 119)
some_indexes = st.lists(indexes, min_size=1, max_size=3)
GONE = 90
outcomes = st.sampled_from(["acked", "rejected", "unsettled", "returned"])
some_settings = st.lists(
    st.sampled_from(
        [
            ("worker_timeout_us", "4000000"),
            ("worker_timeout_us", "10000000"),
            ("heartbeat_interval_us", "1000000"),
            ("dead_max", "0"),
            ("dead_max", "2"),
            ("dead_max", "2"),
            ("max_deliveries", "1"),
            ("max_deliveries", "2"),
            ("rarity", "free"),
            ("rarity", "free"),
            ("rarity", "free"),
            ("rarity", "capacity"),
            ("priority_weight", "0.1"),
            ("age_weight", "0.3333333333333333"),
            ("rarity_weight", "100000"),
            ("rarity_weight", "100000"),
            ("rarity_weight", "0"),
            ("on_demand_weight", "1"),
            ("on_demand_age_weight", "7.7"),
            ("on_demand_age_cap_us", "3000000"),
        ]
    ),
    max_size=3,
).map(dict)


#: What can be done next: number of arguments, then a method and its arguments. One strategy for each point of weight.
moves = []


def often(weight, **arguments):
    """Make a method a step of the machine. Not a `rule` of its own: hypothesis switches half of those off in a run."""

    def add(method):
        name, given = st.just(method.__name__), st.fixed_dictionaries(arguments)
        moves.extend((len(arguments), st.tuples(name, given)) for _ in range(weight))
        return method

    return add


class Conformance(RuleBasedStateMachine):
    """Drives a server and the reference alike."""

    def __init__(self, client, tally):
        super().__init__()
        client.flushall()
        self.client, self.tally = client, tally
        self.scheduler = ClockedScheduler(client, KEYS)
        self.server = Server(client)
        self.reference = Reference()
        self.job_numbers, self.sequences = count(), count()
        self.granted = []  # (worker, job id, fencing number) of every claim there was
        self.released = None
        self.goes_on = True
        self.owed = False
        self.full = False
        self.burst_was = self.backlog_was = False

    @property
    def now_us(self):
        return self.scheduler.now_us

    # -- one arrow, and what must be true after it

    def step(self, arrow, reply, *rest, **values):
        """Run a script; *reply* is what the reference answered, in the script's own form."""
        full, self.full = self.full, False
        if full:
            self.client.config_set("maxmemory", "1")
        try:
            found = self.scheduler._run(load(arrow), rest=rest, **values)
        finally:
            if full:
                self.client.config_set("maxmemory", "0")
        assert _text(found) == reply, f"{arrow} replied {_text(found)}, the reference {reply}"
        self.tally[arrow] += 1

    def compare(self, more=False):
        """Compare the states; then, unless *more* is to be done, see to the invariants."""
        state, wanted = self.server.state(), expected(self.reference)
        if state != wanted:
            pytest.fail(_difference(state, wanted))
        self.check_that_each_job_is_in_one_place(state)
        self.check_placements()
        self.owed = self.owed or bool(more)
        if more and self.goes_on:
            self.go_on({job.type for job in self.reference.jobs.values() if job.state == "pending"})
        if not self.owed:
            self.check_that_no_slot_is_idle()

    def go_on(self, given):
        more = self.reference.claim(given, now_us=self.now_us)
        self.step("claim", [more], *sorted(map(encode, given)))
        waiting = {job.type for job in self.reference.jobs.values() if job.state == "pending"}
        self.owed = self.owed and (more or not waiting <= set(given))
        self.compare(more)

    def check_that_each_job_is_in_one_place(self, state):
        places = Counter()
        for key, members in state.items():
            if key.startswith(PLACES):
                places.update(list(members))
        for job in self.reference.jobs.values():
            assert places.pop(job.id, 0) == (job.state != "done"), f"{job.id} is in no place, or in several"
        assert not places, f"only a place knows of {places}"

    def check_placements(self):
        """Go back through the claims that were just granted, the last first."""
        free = self.free_slots()
        new = [job for job in self.reference.jobs.values() if (job.fence or 0) > len(self.granted)]
        for job in sorted(new, key=lambda job: -job.fence):
            worker = self.reference.workers[job.worker]
            free[worker.id] += 1
            assert free[worker.id] > 0, f"{worker.id} got {job.id} with no slot free"
            for each in self.reference.workers.values():
                idle = free.get(each.id, 0) > 0 and job.type in each.types
                assert not (idle and len(each.types) < len(worker.types)), f"{job.id} would have fitted {each.id}"
        self.granted += [(job.worker, job.id, job.fence) for job in sorted(new, key=lambda job: job.fence)]

    def check_that_no_slot_is_idle(self):
        idle = self.idle_types()
        for job in self.reference.jobs.values():
            assert job.state != "pending" or job.type not in idle, f"{job.id} waits beside a free slot"

    def free_slots(self):
        return {
            each.id: each.slots - each.other - len(each.claims)
            for each in self.reference.workers.values()
            if each.accepting and not each.stalled
        }

    def idle_types(self):
        free = self.free_slots()
        return {type_ for each in self.reference.workers.values() if free.get(each.id, 0) > 0 for type_ in each.types}

    def pick_worker(self, index):
        live = sorted(self.reference.workers)
        return live[index % len(live)] if live and index < GONE else WORKERS[index % len(WORKERS)]

    def pick_claims(self, some_indexes):
        """Return a worker and claims: its own, but for a stale one or another's."""
        held = [claim for claim in self.granted if self.is_held(*claim)]
        if not self.granted:
            return WORKERS[0], [("no job", 1)]
        worker = held[some_indexes[0] % len(held)][0] if held else WORKERS[0]
        own = [claim for claim in held if claim[0] == worker]
        past = [claim for claim in self.granted if claim[:2] in {each[:2] for each in own} and claim not in own]
        picked = []
        for index in some_indexes:
            choice = own if own and index < GONE else past if past and index % 2 else self.granted
            picked.append(choice[-1 - index % len(choice)][1:])
        return worker, picked

    def is_held(self, worker, job_id, fence):
        known = self.reference.workers.get(worker)
        return known is not None and known.claims.get(job_id) == fence

    @invariant()
    def count(self):
        self.tally["steps"] += 1

    @initialize(
        fleet=st.lists(st.tuples(some_types, slots), min_size=2, max_size=5),
        goes_on=st.booleans(),
        given_settings=some_settings,
    )
    def begin(self, fleet, goes_on, given_settings):
        self.goes_on = goes_on  # whether callers go on at once where a reply says `more`
        for worker, (given, number) in zip(WORKERS, fleet, strict=False):
            self._join(worker, given, number, 0, given_settings)

    # -- jobs

    def _publish(self, job_id, type_, on_demand, priority, delay_us):
        given = {"type_": type_, "on_demand": on_demand, "priority": priority, "delay_us": delay_us}
        described = {"task_id": f"task of {job_id}", "task_name": "t", "message": f"message of {job_id}\n\\u00e9"}
        arguments = {
            "id": job_id,
            "type": encode(type_),
            "mode": "demand" if on_demand else "queued",
            "priority": priority,
            "delay_us": delay_us,
            **described,
        }
        if self.full and job_id not in self.reference.jobs:
            with pytest.raises(redis.OutOfMemoryError):
                self.step("publish", None, **arguments)
            return False
        reply = self.reference.publish(job_id, **given, **described, now_us=self.now_us)
        self.step("publish", list(reply), **arguments)
        return reply.more

    @often(
        12, letter=st.sampled_from("abc"), type_=types, on_demand=st.booleans(), priority=priorities, delay_us=delays_us
    )
    def publish(self, letter, type_, on_demand, priority, delay_us):
        job_id = f"{letter}{next(self.job_numbers)}"
        self.compare(self._publish(job_id, type_, on_demand, priority, delay_us))

    @often(1, index=st.integers(0, 20), type_=types, delay_us=delays_us)
    def publish_again(self, index, type_, delay_us):
        known = list(self.reference.jobs)
        if known:
            self.compare(self._publish(known[-1 - index % len(known)], type_, False, 7, delay_us))

    @often(4, number=st.sampled_from([3, 3, 5, 5, 5, 8, 8, 55]), type_=types, delay_us=delays_us)
    def publish_many(self, number, type_, delay_us):
        if number > 50 and self.burst_was:
            return  # once in a run: so many jobs make every later step slow
        self.burst_was = self.burst_was or number > 50
        for each in range(number):
            more = self._publish(f"m{next(self.job_numbers)}", type_, each % 7 == 0, each % 3, delay_us)
        self.compare(more)

    @often(3, worker=st.sampled_from(WORKERS), given=some_types, dies=st.sampled_from([False, True, True]))
    def meet_a_backlog(self, worker, given, dies):
        """Join with more slots than two calls can fill, and as many jobs waiting; then go, and purge the rest."""
        given = tuple(type_ for type_ in given if type_ not in self.idle_types())
        if not given or self.backlog_was:
            return
        self.backlog_was = True
        for number in range(110):
            self._publish(f"n{next(self.job_numbers)}", given[number % len(given)], False, number % 3, 0)
        self._join(worker, given, 120, 0, {})
        if dies:
            self._be_silent(11, 3 * _S, {worker})
        self._leave(worker)
        for type_ in given:
            self._purge(type_)

    @often(1, type_=types)
    def purge(self, type_):
        self._purge(type_)

    def _purge(self, type_):
        deleted, more = self.reference.purge(type_)
        self.step("purge", [deleted, more], type=encode(type_))
        self.compare()

    @often(2, given=some_types)
    def claim(self, given):
        self.go_on(given)

    # -- workers

    @often(
        5, worker=st.sampled_from(WORKERS), given=some_types, slots=slots, other=others, given_settings=some_settings
    )
    def join(self, worker, given, slots, other, given_settings):
        self._join(worker, given, slots, other, given_settings)

    def _join(self, worker, given, slots, other, given_settings):
        reply = self.reference.join(
            worker,
            name=NAMES[worker],
            types=given,
            slots=slots,
            other=other,
            settings=given_settings,
            now_us=self.now_us,
        )
        self.step(
            "join",
            [reply.more, reply.namesake or ""],
            *(part for pair in given_settings.items() for part in pair),
            worker=worker,
            name=encode(NAMES[worker]),
            slots_in_all=slots,
            other=other,
            profile=profile(given),
            types=" ".join(sorted(map(encode, given))),
        )
        self.compare(reply.more)

    @often(
        8,
        index=indexes,
        forgotten=st.sampled_from([(), (0,), (1, 3), (0, 1, 2, 3, 4)]),
        stale=st.lists(indexes, max_size=2),
        slots=st.sampled_from([None, None, None, None, None, 0, 1, 2, 4]),
        other=others,
        draining=st.sampled_from([False] * 4 + [True]),
    )
    def sync(self, index, forgotten, stale, slots, other, draining):
        worker = self.pick_worker(index)
        known = self.reference.workers.get(worker)
        held = [
            each for number, each in enumerate(known.claims.items() if known else ()) if number % 5 not in forgotten
        ]
        held += [self.granted[-1 - index % len(self.granted)][1:] for index in stale if self.granted]
        now_slots = slots if slots is not None or not known else known.slots
        self._sync(worker, held, now_slots or 0, other, draining)

    @often(2, index=indexes, beyond_us=st.sampled_from([-1, 0, 1]))
    def sync_one_beat_later(self, index, beyond_us):
        """Sync, naming nothing, when the worker's last claim is just so old that it may be asked about."""
        known = self.reference.workers.get(self.pick_worker(index))
        if known and known.claims:
            claimed_us = max(self.reference.jobs[job_id].claimed_us for job_id in known.claims)
            beat_us = int(self.reference.settings.get("heartbeat_interval_us", 5 * _S))
            self.pass_time(max(0, claimed_us + beat_us + beyond_us - self.now_us))
            self._sync(known.id, [], known.slots, known.other, draining=False)

    def _sync(self, worker, held, slots, other, draining):
        reply = self.reference.sync(worker, held, slots=slots, other=other, draining=draining, now_us=self.now_us)
        self.step(
            "sync",
            [reply.known, reply.ticker, reply.more, [str(part) for pair in reply.asked for part in pair], reply.void],
            *(part for pair in held for part in pair),
            worker=worker,
            slots_in_all=slots,
            other=other,
            draining=int(draining),
        )
        self.compare(reply.more)

    @often(5, index=indexes, turns=st.booleans())
    def beat(self, index, turns):
        worker = self.pick_worker(index)
        reply = self.reference.beat(worker, turns=turns, now_us=self.now_us)
        self.step("beat", [reply.known, reply.more], worker=worker, turns=int(turns))
        self.compare(reply.more)

    @often(2, index=indexes)
    def recover(self, index):
        worker = self.pick_worker(index)
        reply = self.reference.recover(worker, now_us=self.now_us)
        self.step("recover", [reply.more, reply.recovered], worker=worker)
        self.compare(reply.more)

    @often(2, index=indexes)
    def leave(self, index):
        self._leave(self.pick_worker(index))

    def _leave(self, worker):
        more = self.reference.leave(worker, now_us=self.now_us)
        self.step("leave", [more], worker=worker)
        self.compare(more)

    @often(3, index=indexes, number=st.integers(1, 3))
    def read(self, index, number):
        for _ in range(number):
            self._read(self.pick_worker(index))

    def _read(self, worker):
        found = self.client.rpop(KEYS.key("inbox", worker))
        inbox = self.reference.workers[worker].inbox if worker in self.reference.workers else []
        assert (found and found.decode()) == (payload(inbox.pop(0)) if inbox else None)

    @often(
        8,
        index=indexes,
        number=st.integers(1, 4),
        early=st.booleans(),
        outcomes=st.lists(outcomes, min_size=4, max_size=4),
    )
    def work(self, index, number, early, outcomes):
        """Do as a worker does: read a job, ack it early or at its end, release its slot and go on with what it got."""
        worker = self.pick_worker(index)
        for outcome in outcomes[:number]:
            self._read(worker)
            held = self.reference.workers[worker].claims if worker in self.reference.workers else {}
            if not held:
                return
            claim = next(iter(held.items()))
            if early:
                self._ack(worker, [claim])
            self.released = worker, str(next(self.sequences)), [(*claim, outcome)], True
            self._release(*self.released)

    # -- claims

    @often(3, indexes=some_indexes)
    def ack(self, indexes):
        self._ack(*self.pick_claims(indexes))

    def _ack(self, worker, acks):
        acked = self.reference.ack(worker, acks)
        self.step("ack", acked, *(part for pair in acks for part in pair), worker=worker)
        self.compare()

    @often(8, indexes=some_indexes, outcome=outcomes, inline=st.booleans())
    def release(self, indexes, outcome, inline):
        worker, claims = self.pick_claims(indexes)
        self.released = worker, str(next(self.sequences)), [(*claim, outcome) for claim in claims], inline
        self._release(*self.released)

    @often(3, lost=st.booleans())
    def release_again(self, lost):
        """Repeat a call whose reply was lost, and with it, maybe, a job that it carried."""
        if not self.released:
            return
        known = self.reference.workers.get(self.released[0])
        if lost and known and known.granted:
            self._requeue(known.id, known.granted[:1], counted=False)
        self._release(*self.released)

    def _release(self, worker, sequence, ends, inline):
        reply = self.reference.release(worker, sequence, ends, inline=inline, now_us=self.now_us)
        self.step(
            "release",
            [reply.more, *map(payload, reply.deliveries)],
            *(part for end in ends for part in end),
            worker=worker,
            sequence=sequence,
            caller=int(inline),
        )
        self.compare(reply.more)

    @often(4, indexes=some_indexes, counted=st.booleans())
    def requeue(self, indexes, counted):
        self._requeue(*self.pick_claims(indexes), counted)

    def _requeue(self, worker, claims, counted):
        more = self.reference.requeue(worker, claims, counted=counted, now_us=self.now_us)
        self.step("requeue", [more], *(part for pair in claims for part in pair), worker=worker, counted=int(counted))
        self.compare(more)

    # -- time

    @often(8, by_us=times_us)
    def pass_time(self, by_us):
        self.scheduler.advance(by_us / 1e6)

    @often(5)
    def tick(self):
        reply = self.reference.tick(now_us=self.now_us)
        next_due_us = -1 if reply.next_due_us is None else reply.next_due_us
        self.step("tick", [reply.more, str(next_due_us), reply.due, reply.recovered, reply.dead_workers])
        self.compare(reply.more)

    @often(
        2,
        times=st.sampled_from([2, 2, 4, 11]),
        by_us=st.sampled_from([1_000_000, 3_000_000]),
        mute=st.sets(indexes, max_size=2),
    )
    def silence(self, times, by_us, mute):
        """Let time pass, ticked all the while: only then does silence count."""
        self._be_silent(times, by_us, {self.pick_worker(index) for index in mute})

    def _be_silent(self, times, by_us, mute):
        for _ in range(times):
            self.scheduler.advance(by_us / 1e6)
            for worker in sorted(self.reference.workers.keys() - mute):
                known = self.reference.workers[worker]
                self._sync(worker, list(known.claims.items()), known.slots, known.other, not known.accepting)
            self.tick()

    @often(2)
    def the_memory_is_full_at_the_next_call(self):
        self.full = True

    @rule(move=st.one_of([move for _, move in sorted(moves, key=lambda each: each[0])]))  # the simplest come first
    def do(self, move):
        name, arguments = move
        getattr(self, name)(**arguments)


def _text(reply):
    if isinstance(reply, list):
        return [_text(each) for each in reply]
    return reply.decode() if isinstance(reply, bytes) else reply


def _difference(state, wanted):
    lines = [
        f"{key}\n  server:    {state.get(key)}\n  reference: {wanted.get(key)}"
        for key in sorted(state.keys() | wanted.keys())
        if state.get(key) != wanted.get(key)
    ]
    return "the server's state differs from the reference's\n" + "\n".join(lines)


@pytest.mark.conformance
@pytest.mark.timeout(1200)  # a failure is made smaller before it is shown
def test_the_server_does_what_the_reference_does(redis_client):
    tally = Counter()
    print(f"\nCONFORMANCE_SEED={SEED}")
    for round_ in count():
        missing = STEPS - tally["steps"]  # a run may end early
        if missing <= 0:
            break
        run_state_machine_as_test(
            seed(SEED + round_)(lambda: Conformance(redis_client, tally)),
            settings=settings(
                max_examples=1 + missing // STEPS_IN_A_RUN,
                stateful_step_count=STEPS_IN_A_RUN,
                deadline=None,
                derandomize=False,  # other steps in every run
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
            ),
        )
    print(tally.pop("steps"), "steps:", dict(tally))
