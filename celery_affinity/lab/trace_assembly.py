"""Assembles a trace from the pages of workers: claims by fencing token, and the times at which workers join and leave.

Pure: `recorder` reads the data. Times are in µs of the server's clock; `TraceAssembly.trace` makes them relative.

A worker estimates the server's clock with an error of 100 µs or more, which is as long as a busy fleet takes between
two decisions. So the server's own times of claims and freed slots replace the worker's wherever they exist. All times
of one release are equal, as on the server, which ends jobs and claims the next ones at one time.
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
from ..schema.rules_codec import StatedRate, decode_rules
from ..schema.values import decode_number, encode_part
from ..settings.limits import limit_set, limits_in_force, rate_set
from ..settings.tenants import OTHERS
from .trace import OUTCOMES, PENDING, RETURNED, RUNNING, Trace, TracedJob, TracedWorker

#: Bytes of a hash: with a million keys, two hashes collide in 1 of 40 million traces.
_HASH_BYTES = 8
#: Encoded prefix of settings' entries that name a type instead of a key.
_ENCODED_OF_TYPE = encode_part(OF_TYPE)


class KeyedHash(NamedTuple):
    """The rules of a job in a trace, with the field names of `TracedJob`."""

    exclusive: str | None = None
    exclusive_limit: str | None = None
    rate: str | None = None
    rate_limit: str | None = None
    merge: str | None = None
    tenant: str | None = None


NO_RULES = KeyedHash()


class KeyHashes:
    """Hashes of one recording. *limits*: the setting in force in Redis format, which overrides the tasks' limits.

    The random salt is not stored. Equal keys have equal hashes within a trace, but names cannot be tested against it.
    """

    def __init__(self, limits: str = "") -> None:
        self._salt = secrets.token_bytes(16)
        self._limits = limits_in_force(limits)
        self._keyed = lru_cache(maxsize=100_000)(self._hash_rules)

    def of(self, kind: str, name: str) -> str:
        """Return the hash of a *name* of one *kind*: a key and a tenant with the same name have different hashes."""
        text = f"{kind} {name}".encode(errors="surrogateescape")
        return hashlib.blake2b(text, digest_size=_HASH_BYTES, key=self._salt).hexdigest()

    def keyed(self, rules: str, task: str) -> KeyedHash:
        """Return the hashes of a job with *rules*, as in the job hash. *task*: name of the task."""
        return self._keyed(rules, task if rules.startswith("merge=") else "")

    def _hash_rules(self, rules: str, task: str) -> KeyedHash:
        fields: dict[str, str] = {}
        decoded = decode_rules(rules)
        for key_rule in decoded.keys:
            if key_rule.stated is None:
                fields["tenant"] = self.of("tenant", key_rule.key.removeprefix(TENANT_PREFIX))
            elif isinstance(key_rule.stated, StatedRate):
                rate = rate_set(key_rule.key, self._limits) or key_rule.stated
                fields["rate"] = self.of("rate", key_rule.key.removeprefix(RATE_PREFIX))
                fields["rate_limit"] = as_explicit(f"{rate.tokens}/{rate.period_us}")
            else:
                limit = limit_set(key_rule.key, self._limits)
                fields["exclusive"] = self.of("exclusive", key_rule.key)
                fields["exclusive_limit"] = str(key_rule.stated if limit is None else limit)
        if decoded.merge is not None:  # only calls of one task with the same keys merge
            fields["merge"] = self.of("merge", f"{decoded.merge.key} {decoded.text_of_keys} {task}")
        return KeyedHash(**fields)

    def settings(self, settings: dict[str, str]) -> dict[str, str]:
        """Return settings by Redis name, without the names of keys and tenants.

        Limits of types remain, limits of keys are in the jobs. Tenants have the same hashes as in their jobs.
        """
        limits = " ".join(
            item for item in settings.get("limits", "").split() if item.startswith((OF_TYPE, _ENCODED_OF_TYPE))
        )
        return {
            **settings,
            "limits": limits,
            "tenants": " ".join(map(self._hash_quota, settings.get("tenants", "").split())),
        }

    def _hash_quota(self, entry: str) -> str:
        name, _, quota = entry.rpartition("=")
        return entry if name == OTHERS else f"{self.of('tenant', name)}={quota}"


#: Lines of facts for a plain claim whose times were queried: time of the claim, time of its end. A claim without a lane
#: has one line.
_LINES_OF_PLAIN = 2
#: The server's time of a claim or an end is at most this many µs later than the worker's time. A later time belongs
#: to another claim of the job.
_MAX_LATER_US = SECOND_US


@dataclass(slots=True)
class RecordedClaim:
    """A claim; times are in µs of the server's clock."""

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
    brought_by: int = 0  #: worker's number of the release whose reply delivered it, or 0
    release: int = 0  #: worker's number of the release that reported its end, or 0

    def correct_times(self, released_us: Mapping[int, int]) -> None:
        """Use the times of the worker's releases, and restore the order of the times."""
        self.claimed_us = released_us.get(self.brought_by, self.claimed_us)
        if self.freed_us is not None:
            self.freed_us = released_us.get(self.release, self.freed_us)
        self.put_in_order()

    def put_in_order(self) -> None:
        """Restore the order of the times, despite the worker's estimates and steps of the server's clock."""
        self.claimed_us = max(self.claimed_us, self.enqueued_us)
        latest_us = sys.maxsize
        if self.freed_us is not None:
            latest_us = self.freed_us = max(self.freed_us, self.claimed_us)
        if self.started_us is not None:
            self.started_us = min(max(self.started_us, self.claimed_us), latest_us)
        if self.ended_us is not None:
            self.ended_us = min(max(self.ended_us, self.started_us or self.claimed_us), latest_us)


class RowReader:
    """Parses the rows of a *page* with the facts that the server added. *released_us* gets the times of releases."""

    def __init__(self, page: Page, worker: str, hashes: KeyHashes, released_us: dict[int, int]) -> None:
        """Raises ValueError for an unreadable page."""
        self._rows = messages.read_rows(page.claims)
        self._worker, self._hashes, self._released_us = worker, hashes, released_us
        plain = _LINES_OF_PLAIN * sum(is_asked for _, is_asked in self._rows)
        self._of_plain, self._of_others = iter(page.told[:plain]), iter(page.told[plain:])

    def claims(self) -> list[RecordedClaim]:
        """Return the claims of all rows. Raises ValueError."""
        return [self._claim(row, is_asked=is_asked) for row, is_asked in self._rows]

    def _claim(self, row: ClaimRow, *, is_asked: bool) -> RecordedClaim:
        job_id, fence, (type_, lane, outcome), enqueued_us, arrived, started, ended, freed, brought_by, release = row
        if outcome not in OUTCOMES:
            raise ValueError(outcome)

        def at(passed: int | None) -> int | None:
            return None if passed is None else enqueued_us + passed

        added = self._added_by_server(lane, is_asked=is_asked)
        claimed_us, freed_us = _server_time(added.claimed_us, enqueued_us + arrived), at(freed)
        self._record_release(brought_by, added.claimed_us and claimed_us)
        if freed_us is not None and (added.ended_us or 0) >= claimed_us:
            freed_us = _server_time(added.ended_us, freed_us)
            self._record_release(release, freed_us)
        return RecordedClaim(
            int(fence),
            job_id,
            type_,
            enqueued_us,
            claimed_us,
            at(started),
            at(ended),
            freed_us,
            outcome,
            self._worker,
            sys.intern(added.lane),
            self._hashes.keyed(added.rules, added.task) if added.rules else NO_RULES,
            brought_by,
            release,
        )

    def _added_by_server(self, lane: str, *, is_asked: bool) -> "_Added":
        """Return the server's facts about a row with this *lane*."""
        if lane:
            claimed, ended = (next(self._of_plain, "") if is_asked else "" for _ in range(_LINES_OF_PLAIN))
            return _Added(lane, _parse_us(claimed), _parse_us(ended))
        lane, claimed, ended, rest = (*next(self._of_others, "").split(" ", 3), "", "", "", "")[:4]
        rules, _, task = rest.partition("\t")
        return _Added(lane, _parse_us(claimed), _parse_us(ended), rules, task)

    def _record_release(self, release: int, at_us: int | None) -> None:
        if release and at_us is not None:
            self._released_us[release] = at_us


class _Added(NamedTuple):
    """The server's facts; a time is None if the job hash has no time of this claim."""

    lane: str
    claimed_us: int | None
    ended_us: int | None
    rules: str = ""
    task: str = ""


def _parse_us(text: str) -> int | None:
    return int(text) if text else None


def _server_time(server_us: int | None, worker_us: int) -> int:
    """Return the server's time; *worker_us* without a server time, or if that belongs to another claim."""
    return worker_us if server_us is None or server_us > worker_us + _MAX_LATER_US else server_us


class UnclaimedJobs(NamedTuple):
    """A job without a claim at the end of the trace, which waits or has ended."""

    job_id: str
    type: str
    enqueued_us: int
    lane: str
    keyed: KeyedHash = NO_RULES
    outcome: str = PENDING
    ended_us: int | None = None  #: None while it waits


@dataclass(slots=True)
class _Worker:
    """A worker of the recording."""

    id: str
    name: str
    joined_us: int
    since_us: int | None = None  #: start of its recording; None before its first page
    up_to_us: int = 0  #: all claims that ended before this time have been received
    left_us: int | None = None
    #: (start, types, slots) of each period.
    spans: list[tuple[int, tuple[str, ...], int]] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)  #: start of a recording -> number of claims ended since then
    released_us: dict[int, int] = field(default_factory=dict)  #: number of a release -> its time


class TraceAssembly:
    """The parts of one recording. *hashes*: replaces the keys."""

    def __init__(self, hashes: KeyHashes) -> None:
        self._hashes = hashes
        self._workers: dict[str, _Worker] = {}
        self._claims: dict[int, RecordedClaim] = {}
        self._unreadable = 0

    @property
    def claims(self) -> int:
        """Number of claims received so far."""
        return len(self._claims)

    def add(self, page: Page) -> None:
        """Add a worker's page. Unreadable pages are counted."""
        try:
            worker = self._worker(json.loads(page.worker))
        except (ValueError, KeyError, TypeError):
            self._unreadable += 1
            return
        with suppress(ValueError):  # the missing claims are counted, because the page has the number of ended claims
            for claim in RowReader(page, worker.id, self._hashes, worker.released_us).claims():
                self._add_claim(claim)

    def _worker(self, facts: Mapping[str, Any]) -> _Worker:
        id_, to_us, since_us = str(facts["worker"]), int(facts["to"]), int(facts["since"])
        types, slots = tuple(sorted(map(sys.intern, facts["types"]))), int(facts["slots"])
        joined_us = since_us if facts["joined"] is None else int(facts["joined"])
        worker = self._workers.setdefault(id_, _Worker(id_, str(facts["name"]), joined_us))
        worker.since_us = since_us if worker.since_us is None else worker.since_us
        if to_us > (worker.left_us or 0):
            worker.left_us = None  # it was taken for dead
        worker.up_to_us = max(worker.up_to_us, to_us)
        worker.ended[since_us] = int(facts["ended"])
        if not worker.spans or worker.spans[-1][1:] != (types, slots):
            worker.spans.append((max(to_us, since_us) if worker.spans else joined_us, types, slots))
        if "left" in facts:
            worker.left_us = int(facts["left"])
        return worker

    def _add_claim(self, claim: RecordedClaim) -> None:
        before = self._claims.get(claim.fence)
        if before is None or (before.ended_us is None and claim.ended_us is not None):
            self._claims[claim.fence] = claim  # otherwise the page was repeated, or is older

    def add_worker(self, id: str, name: str, types: Iterable[str], slots: int, joined_us: int) -> None:
        """Add a registered worker that has not written a page yet."""
        if id not in self._workers:
            worker = self._workers[id] = _Worker(id, name, joined_us)
            worker.spans.append((joined_us, tuple(sorted(types)), slots))

    def see(self, alive: Iterable[str], now_us: int) -> list[str]:
        """Note the registered workers *alive*. Return the unknown ids among them."""
        ids = set(alive)
        for worker in self._workers.values():
            if worker.left_us is None and worker.id not in ids:
                worker.left_us = now_us
        return sorted(ids - self._workers.keys())

    def known_until(self, alive: Iterable[str], late_us: int, end_us: int) -> int:
        """Return the time, up to *end_us*, until when all ended claims of recording workers have been received.

        Workers without a page since *late_us* are ignored; if they are also not *alive*, they have died.
        """
        ids = set(alive)
        for worker in self._workers.values():
            if worker.left_us is None and worker.id not in ids and worker.up_to_us < late_us:
                worker.left_us = worker.up_to_us
        reported_us = (worker.up_to_us for worker in self._workers.values() if worker.left_us is None)
        return min((at_us for at_us in reported_us if at_us >= late_us), default=end_us)

    def behind(self, alive: Iterable[str], up_to_us: int) -> list[str]:
        """Return the workers in *alive* whose claims ended until *up_to_us* have not all been received."""
        return [id_ for id_ in alive if id_ not in self._workers or self._workers[id_].up_to_us < up_to_us]

    def name_of(self, id: str) -> str:
        return self._workers[id].name if id in self._workers else id

    def begun_us(self, since_us: int) -> int:
        """Return the time from which a recording switched on at *since_us* is complete."""
        initial = (worker for worker in self._workers.values() if worker.joined_us <= since_us)
        return max([since_us, *(worker.since_us for worker in initial if worker.since_us is not None)])

    def trace(self, begin_us: int, end_us: int, waiting: Iterable[UnclaimedJobs], **facts: Any) -> Trace:
        """Return the trace from *begin_us* to *end_us*. *facts*: the other fields of `Trace`."""
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
        requeued_us: dict[str, int] = {}  # job id -> time of its last requeue
        traced = set()
        for fence in sorted(self._claims):
            claim = self._claims[fence]
            claim.correct_times(self._workers[claim.worker].released_us)
            self._close(claim)
            since_us = min(max(claim.enqueued_us, requeued_us.get(claim.job_id, claim.enqueued_us)), claim.claimed_us)
            if claim.job_id in traced or since_us > end_us:
                continue
            if claim.ended_us is not None:
                requeued_us[claim.job_id] = claim.ended_us
            if claim.ended_us is None or max(claim.ended_us, claim.freed_us or 0) >= begin_us:
                yield _traced(claim, fence, since_us, begin_us, end_us, names[claim.worker])
            if claim.ended_us is None or claim.ended_us > end_us or claim.claimed_us > end_us:
                traced.add(claim.job_id)
        for job in waiting:
            since_us = max(job.enqueued_us, requeued_us.get(job.job_id, job.enqueued_us))
            if job.job_id not in traced and since_us <= end_us:
                yield _traced_waiting(job, since_us, begin_us)

    def _close(self, claim: RecordedClaim) -> None:
        """End a claim of a dead worker: its job was requeued, or lost."""
        left_us = self._workers[claim.worker].left_us
        if claim.ended_us is None and left_us is not None:
            claim.ended_us, claim.outcome = left_us, RETURNED
            claim.put_in_order()

    def _names(self) -> dict[str, str]:
        """Return the names of workers; a number is appended while another worker has the same name."""
        names: dict[str, str] = {}
        by_name: dict[str, list[_Worker]] = {}
        for worker in sorted(self._workers.values(), key=lambda worker: (worker.joined_us, worker.id)):
            free = (
                index
                for index, earlier in enumerate(by_name.setdefault(worker.name, []))
                if earlier.left_us is not None and earlier.left_us <= worker.joined_us
            )
            index = next(free, len(by_name[worker.name]))
            by_name[worker.name][index : index + 1] = [worker]
            names[worker.id] = sys.intern(worker.name if index == 0 else f"{worker.name}~{index + 1}")
        return names

    def _traced_workers(self, begin_us: int, end_us: int, names: Mapping[str, str]) -> Iterator[TracedWorker]:
        traced = []
        for worker in self._workers.values():
            ends = [span[0] for span in worker.spans[1:]] + [worker.left_us]
            for (from_us, types, slots), to_us in zip(worker.spans, ends, strict=True):
                if from_us > end_us or (to_us is not None and to_us <= begin_us):
                    continue
                left_us = None if to_us is None or to_us > end_us else to_us - begin_us
                traced.append(TracedWorker(names[worker.id], types, slots, max(0, from_us - begin_us), left_us))
        return iter(sorted(traced, key=lambda worker: (worker.joined_us, worker.name)))

    def _lost(self) -> int:
        """Return the number of missing claims: reported as ended by workers, or unreadable."""
        ended: dict[str, int] = {}
        for claim in self._claims.values():
            if claim.outcome != RUNNING:
                ended[claim.worker] = ended.get(claim.worker, 0) + 1
        missing = (sum(worker.ended.values()) - ended.get(worker.id, 0) for worker in self._workers.values())
        return self._unreadable + sum(max(0, number) for number in missing)


def _traced(claim: RecordedClaim, fence: int, since_us: int, begin_us: int, end_us: int, worker: str) -> TracedJob:
    """Return a claim as a job of a trace that ends at *end_us*."""

    def relative(at_us: int | None) -> int | None:
        return None if at_us is None or at_us > end_us else at_us - begin_us

    ended_at_us = None if claim.ended_us is None else max(claim.ended_us, begin_us)  # the server received it later
    is_claimed, ended_us = claim.claimed_us <= end_us, relative(ended_at_us)
    outcome = claim.outcome if ended_us is not None else RUNNING
    return TracedJob(
        type=claim.type,
        enqueued_us=claim.enqueued_us - begin_us,
        since_us=since_us - begin_us,
        **_urgency(claim.lane),
        fence=fence if is_claimed else None,
        claimed_us=relative(claim.claimed_us),
        started_us=relative(claim.started_us),
        ended_us=ended_us,
        freed_us=relative(claim.freed_us),
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
