"""Moves of time and settings, and longer moves for states that single moves reach too rarely."""

from celery_affinity.policy.slot_math import NOTHING
from celery_affinity.schema.constants import AT_ONCE_US, MAX_MOVES
from celery_affinity.schema.values import encode_part
from tests.conformance.reference import locality

from . import draw
from .both import often
from .ending import Ending
from .invariants import idle_types
from .publishing import Publishing
from .quotas import Quotas
from .recurring import RecurringCalls
from .serving import Serving
from .side_by_side import Named, NothingFound
from .stopping import Stopping
from .vocabulary import (
    BURST,
    CROSSING,
    LONG_CROSSING,
    NEAR,
    PAUSABLE,
    SECOND_US,
    SHARP_RARITY,
    STAMPS,
    TYPES,
    WORKERS,
    expiries_us,
    held_ahead,
    indexes,
    marks,
    outcomes,
    pauses_us,
    priorities,
    some_indexes,
    some_settings,
    some_stamps,
    some_types,
    times_us,
    types,
)
from .working import Working

#: Distance between the stages of `repair`, whose positions are places in a page, or numbers of members.
STAGE = 10**14


class Stories(Publishing, Working, Serving, Ending, Stopping, Quotas, RecurringCalls):
    """Longer moves, and moves of time and settings."""

    @often(8, by_us=times_us)
    def pass_some_time(self, by_us):
        self.pass_time(by_us)

    @often(5)
    def tick(self):
        lists = [f"stock {type_}" for type_ in TYPES]
        reply = self.reference.tick(lists, now_us=self.now_us)
        next_due_us = -1 if reply.next_due_us is None else reply.next_due_us
        counts = [
            reply.due,
            reply.recovered,
            [*map(encode_part, reply.dead_workers)],
            reply.unreported,
            reply.recurring,
        ]
        times = [str(self.now_us), str(reply.ticked_us or "")]
        self.step("tick", [reply.again, str(next_due_us), *counts, reply.lists, Named(reply.unfilled), *times], *lists)
        self.compare(reply.unfilled)

    @often(3, changes=some_settings, resets=some_settings)
    def configure(self, changes, resets):
        self._configure(dict.fromkeys(resets, "") | changes)

    @often(2, what=draw.sampled_from(PAUSABLE), for_us=pauses_us)
    def pause(self, what, for_us):
        is_new = self.reference.pause(what, for_us=for_us, why="a reason", now_us=self.now_us)
        self.step("pause", int(is_new), what=what, for_us="" if for_us is None else for_us, why="a reason")
        self.compare()

    @often(4, what=draw.sampled_from(PAUSABLE))
    def resume(self, what):
        self._resume(what if what in self.reference.pauses else next(iter(self.reference.pauses), what))

    def _resume(self, what):
        reply = self.reference.resume(what, now_us=self.now_us)
        self.step("resume", [reply.resumed, Named(reply.unfilled)], what=what)
        self.compare(reply.unfilled)

    @often(3, thorough=draw.booleans())
    def repair(self, thorough):
        """Run a repair: no key is damaged, so it finds and changes nothing."""
        reference, how = self.reference, int(thorough)
        names = [*reference.jobs, *reference.workers][-9:] if thorough else []
        self.step("repair", NothingFound(), *names, first=0, how=how)
        waiting = {job.type for job in reference.jobs.values() if job.state == "pending"}
        served = {type_ for worker in reference.workers.values() for type_ in worker.types if worker.slots}
        # An invocation checks at least one worker, profile, type, key or recurring call. Some numbers are unknown here.
        workers = [len(reference.workers)] * 2
        most = [0, *workers, len(waiting) + 1, len(served), len(waiting), len(waiting)]
        hints = {locality.hint_of(job) for job in reference.jobs.values() if job.state == "pending"}
        most += [len(reference.waiting_keys), len(waiting), len(hints), len(reference.recurring), 0]
        for stage, number in enumerate(most):
            for at in range(number + 1 if stage else 0):
                self.step("repair", NothingFound(), first=stage * STAGE + at, how=how)
        self.step("repair", NothingFound(), first=11 * STAGE, how=how)
        due = sum(
            job.own_due_us is not None and job.state in ("pending", "scheduled") for job in reference.jobs.values()
        )
        for at in range(due):
            self.step("repair", NothingFound(), first=14 * STAGE + at, how=how)
        self.step("repair", [-1, [], []], first=14 * STAGE + due, how=how)
        self._have_turns_of_later_end()
        self.compare()

    def _have_turns_of_later_end(self):
        """The clock was reset to before their start: `repair` lets the next tick end them."""
        reference, now_us = self.reference, self.now_us
        for key, (_, since_us, _) in reference.turns.items():
            agrees = reference.waiting_keys.get(key) == reference.settings.limits_revision
            if since_us > now_us and agrees and reference.due_keys.get(key, now_us) > now_us:
                reference.due_keys[key] = AT_ONCE_US

    @often(2)
    def the_memory_is_full_at_the_next_call(self):
        self.full_next = True

    @often(
        2,
        times=draw.sampled_from([2, 2, 4, 11]),
        by_us=draw.sampled_from([1_000_000, 3_000_000]),
        mute=draw.lists(indexes, max_size=2),
    )
    def silence(self, times, by_us, mute):
        """Let time pass with ticks, because a silence counts only while ticks occur."""
        self._be_silent(times, by_us, {self.pick_worker(index) for index in mute})

    def _be_silent(self, times, by_us, mute):
        for _ in range(times):
            self.pass_time(by_us)
            for worker in sorted(self.reference.workers.keys() - mute):
                known = self.reference.workers[worker]
                if 2 * (self.now_us - known.seen_us) > int(self.reference.settings.get("worker_timeout_us")):
                    self._sync(
                        worker,
                        [(*each, -1) for each in known.claims.items()],
                        known.slots,
                        known.other,
                        not known.accepting,
                    )
            self.tick()

    @often(
        3, index=indexes, outcome=outcomes, on_demand=draw.booleans(), priority=priorities, some_indexes=some_indexes
    )
    def set_the_clock_back(self, index, outcome, on_demand, priority, some_indexes):
        """Reset the clock for a publish and a release: waiting jobs are then from the future."""
        self.pass_time(-400 * SECOND_US)
        worker = self.pick_worker(index)
        known = self.reference.workers.get(worker)
        for type_ in sorted(known.types) if known else TYPES:
            self.publish("b", "", type_, on_demand, priority, 0, None, ())
        self.release(some_indexes, outcome, inline=True)
        self.pass_time(400 * SECOND_US)

    @often(
        3,
        jobs=draw.lists(draw.tuples(types, draw.booleans(), priorities, marks), min_size=3, max_size=6),
        times=draw.sampled_from([1, 1, 1, 8]),
        given_settings=draw.sampled_from([{}, SHARP_RARITY, SHARP_RARITY | {"rarity": "capacity"}]),
    )
    def see_many_fall_due(self, jobs, times, given_settings):
        """Let one tick choose among jobs of several types, each with free slots, which other functions rarely do."""
        if times > 1 and not self.has_room():
            return
        self._configure(given_settings)
        for type_, on_demand, priority, mark in jobs * times:
            self._publish(f"d{next(self.job_numbers)}{mark}", type_, on_demand, priority, SECOND_US)
        self.compare()
        self.pass_time(SECOND_US)
        self.tick()
        if self.owed:
            self.go_on(tuple(sorted({type_ for type_, *_ in jobs})))

    @often(
        3,
        worker=draw.sampled_from(WORKERS),
        given=some_types,
        slots=draw.sampled_from([BURST, BURST, MAX_MOVES]),
        end=draw.sampled_from(["it leaves", "it is silent", "its guard reports it", "its guard reports it"]),
        percentage=draw.sampled_from(["100", "50", "0"]),
        is_full=draw.sampled_from([False, True, True]),
    )
    def meet_a_backlog(self, worker, given, slots, end, percentage, is_full):
        """Join with more slots than two invocations fill, and as many waiting jobs; then leave, and purge the rest."""
        given = tuple(type_ for type_ in given if type_ not in idle_types(self.reference))
        if not given or not self.has_room():
            return
        self.has_bursts, self.is_full = False, is_full
        self._configure({"priority_percentage": percentage})
        for number in range(BURST):
            self._publish(f"n{next(self.job_numbers)}", given[number % len(given)], False, number % 3, 0)
        self._join(worker, given, slots, 0, {})
        if end == "it is silent":
            self._be_silent(11, 3 * SECOND_US, {worker})
        elif end == "its guard reports it":
            if self.owed:
                self.go_on(given)  # until the worker holds more than one invocation reclaims
            self._recover(worker)
            self._heartbeat(worker, loop_runs=True)
        self._leave(worker)
        for type_ in given:
            self._purge(type_)

    @often(
        3,
        index=indexes,
        lanes=draw.lists(draw.tuples(draw.booleans(), draw.integers(0, 10)), min_size=4, max_size=8),
        times=draw.lists(draw.sampled_from([0, 1, SECOND_US // 2, SECOND_US, 3 * SECOND_US]), min_size=6, max_size=12),
        given_settings=draw.sampled_from([{}, CROSSING, LONG_CROSSING, NEAR]),
        outcome=outcomes,
    )
    def overtake(self, index, lanes, times, given_settings, outcome):
        """Claim jobs in many lanes of a type one by one, while on-demand jobs gain on the others."""
        worker = self.pick_worker(index)
        known = self.reference.workers.get(worker)
        if not known or not known.types or self.has_bursts:
            return
        self._configure({"priority_percentage": "100", **given_settings})
        type_ = min(known.types)
        for turn in range(2):
            for nth, (on_demand, priority) in enumerate(lanes):
                job_id = f"{'o' * (1 + (nth + turn) % 3)}{next(self.job_numbers)}"  # ids of several lengths
                self.compare(self._publish(job_id, type_, on_demand, priority, 0))
                self.pass_time(times[nth % len(times)] // 4 * turn)
        for by_us in times:
            self.pass_time(by_us)
            self.work(sorted(self.reference.workers).index(worker), 1, False, NOTHING, [outcome])
            if worker not in self.reference.workers:
                return

    @often(
        6,
        calls=draw.lists(draw.tuples(draw.booleans(), priorities, expiries_us, some_stamps), min_size=2, max_size=5),
        mark=draw.sampled_from(["+", "+", "+!"]),
        index=indexes,
        by_us=times_us,
        task=draw.integers(0, 2),
        outcome=outcomes,
        then=draw.sampled_from(["tick", "revoke", "stamp", "nothing", "reject and replay"]),
    )
    def run_a_batch(self, calls, mark, index, by_us, task, outcome, then):
        """Publish merging calls, run them on a worker with one slot, and let some end during the run."""
        worker = self.pick_worker(index)
        known = self.reference.workers.get(worker)
        if not known or not known.types:
            return
        for on_demand, priority, expires_us, stamps in calls:
            job_id = f"a{next(self.job_numbers)}{mark}"
            self._publish(job_id, min(known.types), on_demand, priority, 0, expires_us, stamps)
        self.compare()
        self.pass_time(by_us // 3)
        index = sorted(self.reference.workers).index(worker)
        self.work(index, 2, False, NOTHING, ["acked", "acked"])
        if then in ("tick", "revoke", "stamp"):
            self.pass_time(by_us)
        if then == "tick":
            self.tick()
        elif then == "revoke":
            self._revoke([f"task of a {task}"])
        elif then == "stamp":
            self._revoke_stamped(STAMPS[:1])
        elif then == "reject and replay":
            outcome = "rejected"
        self.work(index, 1, False, NOTHING, [outcome])
        dead = [job.id for job in self.reference.jobs.values() if job.state == "dead" and job.callers]
        if dead and then == "reject and replay":
            self._share(dead[-1], [*self.reference.jobs[dead[-1]].callers][:task])
            self._replay(dead[-1:])

    @often(
        3,
        number=draw.sampled_from([1, 1, 2, 5, MAX_MOVES + 2]),
        how=draw.sampled_from(["expire", "expire unseen", "expire unseen", "stamp", "task"]),
        index=indexes,
        may_hold=held_ahead,
        outcome=outcomes,
        mark=marks,
    )
    def end_many(self, number, how, index, may_hold, outcome, mark):
        """End waiting jobs, sometimes more than one invocation checks, or let them expire before a tick."""
        for each in range(number):
            expires_us = SECOND_US if how.startswith("expire") else None
            stamps = STAMPS[:1] if how == "stamp" else ()
            delay_us = 64 * SECOND_US if each % 2 and how != "expire unseen" else 0
            self._publish(f"e{next(self.job_numbers)}{mark}", TYPES[0], False, each % 3, delay_us, expires_us, stamps)
        self.compare()
        if how == "expire":
            self.pass_time(SECOND_US)
            self.tick()
        elif how == "expire unseen":
            self.publish_many(1, TYPES[0], 0)
            self.pass_time(SECOND_US)
            self.work(index, 1, False, may_hold, [outcome])
        elif how == "stamp":
            self._revoke_stamped(STAMPS[:1])
        else:
            self._revoke([f"task of e {number}" for number in range(3)])
