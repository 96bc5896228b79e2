"""What workers handed over, made into a trace: claims by fencing number, the times at which workers came and went.

Pure: `recorder` reads what is assembled here. Times are those of the server's clock, µs, until `trace` makes them times
of the trace.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..rules import lanes
from ..rules.rows import number_of
from ..server.recordings import Page
from .claim_rows import RecordedClaim, RowReader
from .hashing import NO_RULES, Hashes, Keyed
from .trace import PENDING, RETURNED, RUNNING, Trace, TracedJob, TracedWorker


class Unclaimed(NamedTuple):
    """A job that no worker had claimed as the trace ended, or that ended so. *ended_us*: None while it waits."""

    job_id: str
    type: str
    enqueued_us: int
    lane: str
    keyed: Keyed = NO_RULES
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


class Assembly:
    """The parts of one recording. *hashes*: what keys become."""

    def __init__(self, hashes: Hashes) -> None:
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

    def trace(self, begin_us: int, end_us: int, waiting: Iterable[Unclaimed], **facts: Any) -> Trace:
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
        self, begin_us: int, end_us: int, waiting: Iterable[Unclaimed], names: Mapping[str, str]
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


def _traced_waiting(job: Unclaimed, since_us: int, begin_us: int) -> TracedJob:
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
    return {"on_demand": lanes.is_on_demand(lane), "priority": number_of(lane.rpartition(".")[2])}
