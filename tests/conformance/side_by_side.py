"""Drive a server and the reference alike: one function on both, then compare the replies and the whole states."""

import redis

from celery_affinity.clock import SECOND_US
from celery_affinity.lab.scripts_engine import CLOCK, START_US
from celery_affinity.schema.constants import ENDED_KEPT_S
from celery_affinity.schema.values import encode_part
from tests.conformance.reference import fair_share
from tests.conformance.reference.reference import Reference
from tests.conformance.reference.replies import NONE

from .invariants import (
    check_placements,
    check_that_calls_merge,
    check_that_each_job_is_in_one_place,
    check_that_keys_are_kept,
    check_that_no_slot_is_idle,
    check_that_reserves_are_kept,
    claimed_batches,
    left_to_a_tick,
)
from .invariants_of_stops import check_that_hints_are_those_of_workers, check_that_stops_are_just
from .mirror import CONF_OF, KEYS, LONGER, METRICS, SHARES, expected, key, read
from .recurrence import Recurrence
from .wire import FEW_BYTES

#: Reply of a full server, which the reference does not model.
REFUSED = "refused"

_FORGOTTEN_AFTER_US = ENDED_KEPT_S * SECOND_US

#: Keys that a fleet leaves forever.
STAYS = ("schema", "fence", "claim_number", "clock", "settings", "conf_last", "counters", "requeues")


#: Beginnings of keys that stay for a while after all jobs and workers are gone.
_EXPIRE = (CONF_OF, METRICS, SHARES, key("clocks"), key("run_times"))


class NothingFound:
    """A reply of `repair` without findings. Its next position is ignored."""

    def __eq__(self, other):
        return other[2] == []

    __hash__ = None


class Named:
    """Equals a text that names *types*, encoded, in any order."""

    def __init__(self, types):
        self._types = sorted(map(encode_part, types))

    def __eq__(self, answer):
        return sorted(answer.split()) == self._types

    def __repr__(self):
        return repr(self._types)


class SideBySide:
    """An emptied server, and a new reference. *tally* counts the invocations."""

    def __init__(self, wire, tally):
        wire.empty()
        self.wire, self.tally = wire, tally
        self.reference = Reference(FEW_BYTES)
        self.now_us, self.told_us = START_US, None
        self.awaited = []  # (function, reply of the reference) of each invocation whose reply is unread
        self.granted = []  # (worker, job id, fencing token) of every claim so far
        self.claimed_batches = {}
        self.ordered = {}  # the stop orders at the last check of the invariants
        self.recurrence = Recurrence()
        self.goes_on = False  # True if callers continue immediately where a reply names types as `unfilled`
        self.left = set()  # types that were left to a tick at the last check of the invariants
        self.owed = set()  # types that a reply named as `unfilled`, without a continuation so far
        self.full_next = False  # True if the server is full at the next function ...
        self.is_full = False  # ... or at every function that must not depend on it
        self.may_forget = False  # True if the server, between its calls, may have forgotten when types had keys

    def step(self, arrow, reply, *rest, **values):
        """Run a script. *reply* is the reference's reply in the script's form."""
        if self.told_us != self.now_us:
            self.told_us = self.now_us
            self.call("HSET", CLOCK, "s", self.now_us // 1_000_000, "us", self.now_us % 1_000_000)
        full, self.full_next = self.full_next or (self.is_full and arrow not in ("publish", "fire_recurring")), False
        if full:
            self.call("CONFIG", "SET", "maxmemory", "1", reply="OK")
        self.wire.add_script(arrow, KEYS.base, rest, values)
        self.awaited.append((arrow, reply))
        if full:
            self.call("CONFIG", "SET", "maxmemory", "0", reply="OK")
        self.tally[arrow] += 1
        fair_share.write_changed(self.reference)
        self.recurrence.see(self.reference, self.now_us)

    def call(self, *command, reply=...):
        self.wire.add(*command)
        self.awaited.append((command[0], reply))

    def compare(self, unfilled=NONE):
        """Compare the replies, then the states, and then check the invariants, unless there is *more* to continue."""
        self.compare_with_server()
        self.check_invariants(unfilled)

    def _forgot_too(self, state):
        """Let the reference forget when types had their keys, where the server did. Return True for any."""
        had = self.reference.had_key
        gone = [each for each in had if not any(name[0] == "@" for name in state.get(KEYS.key("key_state", each), ()))]
        for each in gone:
            del had[each]
        return bool(gone)

    def compare_with_server(self):
        self.wire.read_state()
        self.wire.send()
        wanted = expected(self.reference)  # the server works at the same time
        *replies, found = self.wire.receive()
        for (called, reply), answer in zip(self.awaited, map(_plain, replies), strict=True):
            assert reply is ... or answer == reply, f"{called} replied {answer}, the reference {reply}"
        self.awaited.clear()
        state = self.state = read(found)
        if self.may_forget and self._forgot_too(state):
            wanted = expected(self.reference)
        self.may_forget = False
        assert state == wanted, _difference(state, wanted)
        check_that_each_job_is_in_one_place(self.reference, state)
        check_that_hints_are_those_of_workers(self.reference, state)

    def check_invariants(self, unfilled):
        self.ordered = check_that_stops_are_just(self.reference, self.ordered)
        check_that_calls_merge(self.reference, self.claimed_batches, self.now_us)
        self.claimed_batches = claimed_batches(self.reference)
        granted = self.newly_granted()
        if not self.owed:  # a release leaves the slots of other workers to the following claim
            check_placements(self.reference, granted, self.left)
        self.left = left_to_a_tick(self.reference)
        check_that_keys_are_kept(self.reference, granted)
        check_that_reserves_are_kept(self.reference, granted, self.now_us)
        self.owed |= unfilled
        if unfilled and self.goes_on:
            self.go_on(unfilled)
        if not self.owed:
            check_that_no_slot_is_idle(self.reference)

    def go_on(self, given):
        unfilled = self.reference.claim(given, now_us=self.now_us)
        self.step("claim", [Named(unfilled)], *sorted(map(encode_part, given)))
        self.owed -= set(given) - unfilled
        self.compare(unfilled)

    def newly_granted(self):
        """Return the jobs claimed since the last call."""
        last = self.granted[-1][2] if self.granted else 0
        new = [job for job in self.reference.jobs.values() if (job.fence or 0) > last]
        new.sort(key=lambda job: job.fence)
        self.granted += [(job.worker, job.id, job.fence) for job in new]
        return new

    def is_held(self, worker, job_id, fence):
        known = self.reference.workers.get(worker)
        return known is not None and known.claims.get(job_id) == fence

    def pass_time(self, by_us):
        """Let time pass, and delete jobs that ended long ago, like the server does by its own clock."""
        self.now_us += by_us
        for job in [*self.reference.jobs.values()]:
            if self.reference.is_fading(job) and self.now_us >= job.forgotten_us:
                self._forget(job)
        for name, revoked in (("revoked", self.reference.revoked), ("revoked_stamp", self.reference.revoked_stamps)):
            for each, at_us in [*revoked.items()]:
                if self.now_us - at_us >= _FORGOTTEN_AFTER_US:
                    del revoked[each]
                    keys = [key(name, encode_part(each) if name == "revoked" else each)]
                    if name == "revoked" and each not in self.reference.tasks:
                        keys.append(key("task", encode_part(each)))
                    self.call("UNLINK", *keys, reply=len(keys))

    def _forget(self, job):
        keys = [key("job", job.id)]
        if job.message is not None:
            keys.append(key("message", job.id))
        if [*self.reference.tasks.get(job.task_id, ())] == [job.id]:
            del self.reference.tasks[job.task_id]
            if job.task_id in self.reference.revoked:
                self.call("SET", key("task", encode_part(job.task_id)), "", "EX", 60 * LONGER)
            else:
                keys.append(key("task", encode_part(job.task_id)))
        del self.reference.jobs[job.id]
        self.call("UNLINK", *keys, reply=len(keys))

    def end(self):
        self.compare()
        self.see_all_end()
        left = self.state.keys() - {key(name) for name in STAYS}
        assert not {name for name in left if not name.startswith(_EXPIRE)}, f"this is left: {left}"

    def see_all_end(self):
        """Let all workers leave, and all jobs end and be deleted."""


def _plain(reply):
    if isinstance(reply, list):
        return [_plain(each) for each in reply]
    if isinstance(reply, redis.OutOfMemoryError):
        return REFUSED
    return reply.decode() if isinstance(reply, bytes) else reply


def _difference(state, wanted):
    lines = [
        f"{key}\n  server:    {state.get(key)}\n  reference: {wanted.get(key)}"
        for key in sorted(state.keys() | wanted.keys())
        if state.get(key) != wanted.get(key)
    ]
    return "the server's state differs from the reference's\n" + "\n".join(lines)
