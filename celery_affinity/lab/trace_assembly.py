"""What a trace says of keys and tenants: a hash of each, and the limits that applied.

The hashes of one recording are made with a random salt that nobody keeps: equal keys have equal hashes within a trace,
and nobody can find out by trying names whether one of them is in it.

A claim, from the row that its worker made of it (`membership.records`), and what the arrow ``record`` added to that.

A worker tells times by a guess of the server's clock, which is off by hundreds of microseconds: as long as a busy
fleet takes from one decision to the next. So the server's own times count, of the claim and of the moment at which the
slot was free, wherever they are known. Those of one release are the same, as they were for the server: it ends jobs,
and claims the ones that its reply brings, at one moment.

What workers handed over, made into a trace: claims by fencing number, the times at which workers came and went.

Pure: `recorder` reads what is assembled here. Times are those of the server's clock, µs, until `trace` makes them times
of the trace.
"""

import hashlib
import json
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from ..clock import SECOND_US
from ..options.keys import as_explicit
from ..scheduler import messages
from ..scheduler.messages import ClaimRow
from ..scheduler.recordings import Page
from ..schema import values
from ..schema.constants import RATE_PREFIX, TENANT_PREFIX
from ..schema.keys import OF_TYPE
from ..schema.rules_codec import StatedRate, keys_in, merge_in, split_rules
from ..schema.values import decode_number, encode_part
from ..settings.limits import limit_set, limits_in_force, rate_set
from ..settings.tenants import OTHERS
from .trace import OUTCOMES, PENDING, RETURNED, RUNNING, Trace, TracedJob, TracedWorker

#: Bytes of a hash: among a million keys, two have the same one in 1 of 40 million traces.
_BYTES = 8

#: Beginning of the words of settings that name a type, encoded, and not a key.
_OF_TYPE = encode_part(OF_TYPE)


class KeyedHash(NamedTuple):
    """What a trace has of the rules of a job, under the names of `TracedJob`."""

    exclusive: str | None = None
    exclusive_limit: str | None = None
    rate: str | None = None
    rate_limit: str | None = None
    merge: str | None = None
    tenant: str | None = None


NO_RULES = KeyedHash()


class KeyHashes:
    """Hashes of one recording. *limits*: the setting in force, as Redis has it, which overrides what tasks say."""

    def __init__(self, limits: str = "") -> None:
        self._salt = secrets.token_bytes(16)
        self._limits = limits_in_force(limits)
        self._keyed = lru_cache(maxsize=100_000)(self._worked_out)

    def of(self, kind: str, name: str) -> str:
        """Return the hash of a *name* of one *kind*: the same name as a key and as a tenant has two."""
        said = f"{kind} {name}".encode(errors="surrogateescape")
        return hashlib.blake2b(said, digest_size=_BYTES, key=self._salt).hexdigest()

    def keyed(self, rules: str, task: str) -> KeyedHash:
        """Return what a trace has of a job with these *rules*, as its row has them. *task*: its name."""
        return self._keyed(rules, task if rules.startswith("merge=") else "")

    def _worked_out(self, rules: str, task: str) -> KeyedHash:
        found: dict[str, str] = {}
        for each in keys_in(rules):
            if each.stated is None:
                found["tenant"] = self.of("tenant", each.key.removeprefix(TENANT_PREFIX))
            elif isinstance(each.stated, StatedRate):
                rate = rate_set(each.key, self._limits) or each.stated
                found["rate"] = self.of("rate", each.key.removeprefix(RATE_PREFIX))
                found["rate_limit"] = as_explicit(f"{rate.tokens}/{rate.period_us}")
            else:
                limit = limit_set(each.key, self._limits)
                found["exclusive"] = self.of("exclusive", each.key)
                found["exclusive_limit"] = str(each.stated if limit is None else limit)
        merge = merge_in(rules)
        if merge is not None:  # only calls of one task with the same keys merge
            found["merge"] = self.of("merge", f"{merge.key} {split_rules(rules)[1]} {task}")
        return KeyedHash(**found)

    def settings(self, found: dict[str, str]) -> dict[str, str]:
        """Return settings, by their name in Redis, without names of keys and tenants.

        Limits of types stay; those of keys are in each job. Tenants have the hashes that their jobs have.
        """
        limits = " ".join(word for word in found.get("limits", "").split() if word.startswith((OF_TYPE, _OF_TYPE)))
        return {**found, "limits": limits, "tenants": " ".join(map(self._quota, found.get("tenants", "").split()))}

    def _quota(self, word: str) -> str:
        name, _, quota = word.rpartition("=")
        return word if name == OTHERS else f"{self.of('tenant', name)}={quota}"


#: Lines that are told of a plain claim whose times were asked for: the time of the claim, and that of its end. Of a
#: claim without a lane one line is told.
_LINES_OF_PLAIN = 2

#: Longest time, µs, by which the server's time of a claim, or of an end, is later than the worker knew of it: one that
#: is later still is that of another claim of the job.
_LATEST_US = SECOND_US


@dataclass(slots=True)
class RecordedClaim:
    """Times are those of the server's clock, µs.

    *brought_by*, *release*: the releases of its worker that brought it, and that told its end, by their numbers; 0 for
    none.
    """

    fence: int
    job_id: str
    type: str
    enqueued_us: int
    claimed_us: int
    started_us: int | None
    ended_us: int | None
    freed_us: int | None
    outcome: str
    worker: str
    lane: str
    keyed: KeyedHash
    brought_by: int = 0
    release: int = 0

    def hear(self, released_us: Mapping[int, int]) -> None:
        """Have the times of the releases of its worker, and be in order."""
        self.claimed_us = released_us.get(self.brought_by, self.claimed_us)
        if self.freed_us is not None:
            self.freed_us = released_us.get(self.release, self.freed_us)
        self.put_in_order()

    def put_in_order(self) -> None:
        """Have its times be in order, whatever the worker guessed, and if the server's clock has stepped."""
        self.claimed_us = max(self.claimed_us, self.enqueued_us)
        latest_us = sys.maxsize
        if self.freed_us is not None:
            latest_us = self.freed_us = max(self.freed_us, self.claimed_us)
        if self.started_us is not None:
            self.started_us = min(max(self.started_us, self.claimed_us), latest_us)
        if self.ended_us is not None:
            self.ended_us = min(max(self.ended_us, self.started_us or self.claimed_us), latest_us)


class RowReader:
    """Reads the rows of a *page* in their order, each with what the server has added to it.

    *released_us*: gets the times of releases, by their numbers.
    """

    def __init__(self, page: Page, worker: str, hashes: KeyHashes, released_us: dict[int, int]) -> None:
        """Raises ValueError if nobody can read the page."""
        self._rows = messages.read_rows(page.claims)
        self._worker, self._hashes, self._released_us = worker, hashes, released_us
        plain = _LINES_OF_PLAIN * sum(is_asked for _, is_asked in self._rows)
        self._of_plain, self._of_others = iter(page.told[:plain]), iter(page.told[plain:])

    def claims(self) -> list[RecordedClaim]:
        """Return the claim of each row. Raises ValueError."""
        return [self._claim(row, is_asked=is_asked) for row, is_asked in self._rows]

    def _claim(self, row: ClaimRow, *, is_asked: bool) -> RecordedClaim:
        job_id, fence, (type_, lane, outcome), enqueued_us, arrived, started, ended, freed, brought_by, release = row
        if outcome not in OUTCOMES:
            raise ValueError(outcome)

        def told(passed: int | None) -> int | None:
            return None if passed is None else enqueued_us + passed

        known = self._added(lane, is_asked=is_asked)
        claimed_us, freed_us = _not_later(known.claimed_us, enqueued_us + arrived), told(freed)
        self._hear_of(brought_by, known.claimed_us and claimed_us)
        if freed_us is not None and (known.ended_us or 0) >= claimed_us:
            freed_us = _not_later(known.ended_us, freed_us)
            self._hear_of(release, freed_us)
        return RecordedClaim(
            int(fence),
            job_id,
            type_,
            enqueued_us,
            claimed_us,
            told(started),
            told(ended),
            freed_us,
            outcome,
            self._worker,
            sys.intern(known.lane),
            self._hashes.keyed(known.rules, known.task) if known.rules else NO_RULES,
            brought_by,
            release,
        )

    def _added(self, lane: str, *, is_asked: bool) -> "_Added":
        """Return what the server added to a row with this *lane*."""
        if lane:
            claimed, ended = (next(self._of_plain, "") if is_asked else "" for _ in range(_LINES_OF_PLAIN))
            return _Added(lane, _us(claimed), _us(ended))
        lane, claimed, ended, rest = (*next(self._of_others, "").split(" ", 3), "", "", "", "")[:4]
        rules, _, task = rest.partition("\t")
        return _Added(lane, _us(claimed), _us(ended), rules, task)

    def _hear_of(self, release: int, at_us: int | None) -> None:
        if release and at_us is not None:
            self._released_us[release] = at_us


class _Added(NamedTuple):
    """What the arrow added; None for a time that the row of the job has not, or has of another claim."""

    lane: str
    claimed_us: int | None
    ended_us: int | None
    rules: str = ""
    task: str = ""


def _us(word: str) -> int | None:
    return int(word) if word else None


def _not_later(its_us: int | None, told_us: int) -> int:
    """Return the server's time, or *told_us*, the worker's, if there is none, or that is of another claim."""
    return told_us if its_us is None or its_us > told_us + _LATEST_US else its_us


class UnclaimedJobs(NamedTuple):
    """A job that no worker had claimed as the trace ended, or that ended so. *ended_us*: None while it waits."""

    job_id: str
    type: str
    enqueued_us: int
    lane: str
    keyed: KeyedHash = NO_RULES
    outcome: str = PENDING
    ended_us: int | None = None


@dataclass(slots=True)
class _Worker:
    """A worker. *spans*: since when it served which types with so many slots.

    *since_us*: from when on it recorded; None: it has handed over nothing yet. *up_to_us*: until when all its claims
    that ended are known. *ended*: by the time at which it began to record, how many claims ended since then.
    *released_us*: by the number of a release, when it was.
    """

    id: str
    name: str
    joined_us: int
    since_us: int | None = None
    up_to_us: int = 0
    left_us: int | None = None
    spans: list[tuple[int, tuple[str, ...], int]] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)
    released_us: dict[int, int] = field(default_factory=dict)


class TraceAssembly:
    """The parts of one recording. *hashes*: what keys become."""

    def __init__(self, hashes: KeyHashes) -> None:
        self._hashes = hashes
        self._workers: dict[str, _Worker] = {}
        self._claims: dict[int, RecordedClaim] = {}
        self._unreadable = 0

    @property
    def claims(self) -> int:
        """Number of claims that are known by now."""
        return len(self._claims)

    # -- what is read

    def add(self, page: Page) -> None:
        """Add what a worker handed over. What nobody can read is counted."""
        try:
            its = self._worker(json.loads(page.worker))
        except (ValueError, KeyError, TypeError):
            self._unreadable += 1
            return
        with suppress(ValueError):  # then the worker says how many claims have ended, and that number is not reached
            for claim in RowReader(page, its.id, self._hashes, its.released_us).claims():
                self._add_claim(claim)

    def _worker(self, said: Mapping[str, Any]) -> _Worker:
        id_, to_us, since_us = str(said["worker"]), int(said["to"]), int(said["since"])
        types, slots = tuple(sorted(map(sys.intern, said["types"]))), int(said["slots"])
        joined_us = since_us if said["joined"] is None else int(said["joined"])
        its = self._workers.setdefault(id_, _Worker(id_, str(said["name"]), joined_us))
        its.since_us = since_us if its.since_us is None else its.since_us
        if to_us > (its.left_us or 0):
            its.left_us = None  # it was taken for dead
        its.up_to_us = max(its.up_to_us, to_us)
        its.ended[since_us] = int(said["ended"])
        if not its.spans or its.spans[-1][1:] != (types, slots):
            its.spans.append((max(to_us, since_us) if its.spans else joined_us, types, slots))
        if "left" in said:
            its.left_us = int(said["left"])
        return its

    def _add_claim(self, claim: RecordedClaim) -> None:
        before = self._claims.get(claim.fence)
        if before is None or (before.ended_us is None and claim.ended_us is not None):
            self._claims[claim.fence] = claim  # else the page is repeated, or that was known

    # -- who is there

    def add_worker(self, id: str, name: str, types: Iterable[str], slots: int, joined_us: int) -> None:
        """Add a worker that has handed over nothing yet, as the server knows it."""
        if id not in self._workers:
            its = self._workers[id] = _Worker(id, name, joined_us)
            its.spans.append((joined_us, tuple(sorted(types)), slots))

    def see(self, alive: Iterable[str], now_us: int) -> list[str]:
        """Note which workers the server knows. Return those of which nothing is known here."""
        ids = set(alive)
        for each in self._workers.values():
            if each.left_us is None and each.id not in ids:
                each.left_us = now_us
        return sorted(ids - self._workers.keys())

    def known_until(self, alive: Iterable[str], late_us: int, end_us: int) -> int:
        """Return until when all claims that ended are known, *end_us* at most, of workers that record by themselves.

        Those that have said nothing since *late_us* do not count, and those of them that are not *alive* have died.
        """
        ids = set(alive)
        for each in self._workers.values():
            if each.left_us is None and each.id not in ids and each.up_to_us < late_us:
                each.left_us = each.up_to_us
        there = (each.up_to_us for each in self._workers.values() if each.left_us is None)
        return min((at_us for at_us in there if at_us >= late_us), default=end_us)

    def behind(self, alive: Iterable[str], up_to_us: int) -> list[str]:
        """Return those of *alive* that have not said yet what ended until *up_to_us*."""
        return [id_ for id_ in alive if id_ not in self._workers or self._workers[id_].up_to_us < up_to_us]

    def name_of(self, id: str) -> str:
        return self._workers[id].name if id in self._workers else id

    def begun_us(self, since_us: int) -> int:
        """Return from when on nothing is missing of a recording that was switched on at *since_us*."""
        there = (each for each in self._workers.values() if each.joined_us <= since_us)
        return max([since_us, *(each.since_us for each in there if each.since_us is not None)])

    # -- the trace

    def trace(self, begin_us: int, end_us: int, waiting: Iterable[UnclaimedJobs], **facts: Any) -> Trace:
        """Return the trace from *begin_us* to *end_us*. *facts*: the other values of a `Trace`."""
        names = self._names()
        jobs = sorted(
            self._jobs(begin_us, end_us, waiting, names), key=lambda job: (job.since_us, job.fence or sys.maxsize)
        )
        return Trace(
            length_us=end_us - begin_us,
            workers=tuple(self._traced_workers(begin_us, end_us, names)),
            jobs=tuple(jobs),
            lost=self._lost(),
            **facts,
        )

    def _jobs(
        self, begin_us: int, end_us: int, waiting: Iterable[UnclaimedJobs], names: Mapping[str, str]
    ) -> Iterator[TracedJob]:
        again_us: dict[str, int] = {}  # when a job came back
        traced = set()
        for fence in sorted(self._claims):
            claim = self._claims[fence]
            claim.hear(self._workers[claim.worker].released_us)
            self._close(claim)
            since_us = min(max(claim.enqueued_us, again_us.get(claim.job_id, claim.enqueued_us)), claim.claimed_us)
            if claim.job_id in traced or since_us > end_us:
                continue
            if claim.ended_us is not None:
                again_us[claim.job_id] = claim.ended_us
            if claim.ended_us is None or max(claim.ended_us, claim.freed_us or 0) >= begin_us:
                yield _traced(claim, fence, since_us, begin_us, end_us, names[claim.worker])
            if claim.ended_us is None or claim.ended_us > end_us or claim.claimed_us > end_us:
                traced.add(claim.job_id)
        for job in waiting:
            since_us = max(job.enqueued_us, again_us.get(job.job_id, job.enqueued_us))
            if job.job_id not in traced and since_us <= end_us:
                yield _traced_waiting(job, since_us, begin_us)

    def _close(self, claim: RecordedClaim) -> None:
        """End a claim that a dead worker had: its job came back, or was lost."""
        left_us = self._workers[claim.worker].left_us
        if claim.ended_us is None and left_us is not None:
            claim.ended_us, claim.outcome = left_us, RETURNED
            claim.put_in_order()

    def _names(self) -> dict[str, str]:
        """Return the name of each worker: one that was there together with another of its name has a number as well."""
        names: dict[str, str] = {}
        there: dict[str, list[_Worker]] = {}
        for each in sorted(self._workers.values(), key=lambda worker: (worker.joined_us, worker.id)):
            free = (
                nth
                for nth, before in enumerate(there.setdefault(each.name, []))
                if before.left_us is not None and before.left_us <= each.joined_us
            )
            nth = next(free, len(there[each.name]))
            there[each.name][nth : nth + 1] = [each]
            names[each.id] = sys.intern(each.name if nth == 0 else f"{each.name}~{nth + 1}")
        return names

    def _traced_workers(self, begin_us: int, end_us: int, names: Mapping[str, str]) -> Iterator[TracedWorker]:
        found = []
        for each in self._workers.values():
            ends = [span[0] for span in each.spans[1:]] + [each.left_us]
            for (from_us, types, slots), to_us in zip(each.spans, ends, strict=True):
                if from_us > end_us or (to_us is not None and to_us <= begin_us):
                    continue
                left_us = None if to_us is None or to_us > end_us else to_us - begin_us
                found.append(TracedWorker(names[each.id], types, slots, max(0, from_us - begin_us), left_us))
        return iter(sorted(found, key=lambda worker: (worker.joined_us, worker.name)))

    def _lost(self) -> int:
        """Return how many claims are missing that workers say have ended, or that nobody can read."""
        known: dict[str, int] = {}
        for claim in self._claims.values():
            if claim.outcome != RUNNING:
                known[claim.worker] = known.get(claim.worker, 0) + 1
        missing = (sum(each.ended.values()) - known.get(each.id, 0) for each in self._workers.values())
        return self._unreadable + sum(max(0, number) for number in missing)


def _traced(claim: RecordedClaim, fence: int, since_us: int, begin_us: int, end_us: int, worker: str) -> TracedJob:
    """Return a claim as a trace that ends at *end_us* has it."""

    def within(at_us: int | None) -> int | None:
        return None if at_us is None or at_us > end_us else at_us - begin_us

    ended = None if claim.ended_us is None else max(claim.ended_us, begin_us)  # the server heard of it later
    is_claimed, ended_us = claim.claimed_us <= end_us, within(ended)
    outcome = claim.outcome if ended_us is not None else RUNNING
    return TracedJob(
        type=claim.type,
        enqueued_us=claim.enqueued_us - begin_us,
        since_us=since_us - begin_us,
        **_urgency(claim.lane),
        fence=fence if is_claimed else None,
        claimed_us=within(claim.claimed_us),
        started_us=within(claim.started_us),
        ended_us=ended_us,
        freed_us=within(claim.freed_us),
        outcome=outcome if is_claimed else PENDING,
        worker=worker if is_claimed else None,
        **claim.keyed._asdict(),
    )


def _traced_waiting(job: UnclaimedJobs, since_us: int, begin_us: int) -> TracedJob:
    return TracedJob(
        type=sys.intern(job.type),
        enqueued_us=job.enqueued_us - begin_us,
        since_us=since_us - begin_us,
        **_urgency(job.lane),
        ended_us=None if job.ended_us is None else max(job.ended_us, since_us) - begin_us,
        outcome=job.outcome,
        **job.keyed._asdict(),
    )


def _urgency(lane: str) -> dict[str, Any]:
    return {"on_demand": values.is_on_demand(lane), "priority": decode_number(lane.rpartition(".")[2])}
