"""Assembles a trace from the pages of workers: claims by fencing token, and the times at which workers join and leave.

Pure: `recorder` reads the data. Times are in µs of the server's clock; `TraceAssembly.trace` makes them relative.

A worker estimates the server's clock with an error of 100 µs or more, which is as long as a busy fleet takes between
two decisions. So the server's own times of claims and freed slots replace the worker's wherever they exist. All times
of one release are equal, as on the server, which ends jobs and claims the next ones at one time.
"""

import hashlib
import json
import re
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from ..clock import SECOND_US
from ..options.keys import as_explicit
from ..scheduler import messages
from ..scheduler.messages import ClaimRow
from ..scheduler.recordings import Page
from ..schema import values
from ..schema.constants import MAX_DUE_DIGITS, RATE_PREFIX, TENANT_PREFIX
from ..schema.keys import OF_TYPE
from ..schema.rules_codec import StatedRate, decode_rules
from ..schema.values import decode_number, encode_part
from ..settings.limits import limit_in_force, limits_in_force
from ..settings.tenants import OTHERS
from .trace import OUTCOMES, PENDING, RETURNED, RUNNING, Trace, TracedJob, TracedWorker, relative_times

#: Bytes of a hash: with a million keys, two hashes collide in 1 of 40 million traces.
_HASH_BYTES = 8
#: Encoded prefix of settings' entries that name a type instead of a key.
_ENCODED_OF_TYPE = encode_part(OF_TYPE)


class KeyHashes:
    """Hashes of one recording. *limits*: the setting in force in Redis format, which overrides the tasks' limits.

    The random salt is not stored. Equal keys have equal hashes within a trace, but names cannot be tested against it.
    """

    def __init__(self, limits: str = "") -> None:
        self._salt = secrets.token_bytes(16)
        self._limits = limits_in_force(limits)
        self._hashed = lru_cache(maxsize=100_000)(self._hash_rules)

    def of(self, kind: str, name: str) -> str:
        """Return the hash of a *name* of one *kind*: a key and a tenant with the same name have different hashes."""
        text = f"{kind} {name}".encode(errors="surrogateescape")
        return hashlib.blake2b(text, digest_size=_HASH_BYTES, key=self._salt).hexdigest()

    def options(self, rules: str, task: str) -> Mapping[str, str]:
        """Return the hashes of a job with *rules*, as in the job hash, as options of a `TracedJob`, and its limits.

        *task*: name of the task.
        """
        if not rules:
            return {}
        return self._hashed(rules, task if rules.startswith("merge=") else "")

    def _hash_rules(self, rules: str, task: str) -> Mapping[str, str]:
        options: dict[str, str] = {}
        decoded = decode_rules(rules)
        for key_rule in decoded.keys:
            limit = limit_in_force(key_rule, self._limits)
            if key_rule.is_of_tenant:
                options["tenant"] = self.of("tenant", key_rule.key.removeprefix(TENANT_PREFIX))
            elif isinstance(limit, StatedRate):
                options["rate"] = self.of("rate", key_rule.key.removeprefix(RATE_PREFIX))
                options["rate_limit"] = as_explicit(f"{limit.tokens}/{limit.period_us}")
            else:
                options["exclusive"], options["exclusive_limit"] = self.of("exclusive", key_rule.key), str(limit)
        if decoded.merge is not None:  # only calls of one task with the same keys merge
            options["merge"] = self.of("merge", f"{decoded.merge.key} {decoded.text_of_keys} {task}")
        return options

    def settings(self, settings: dict[str, str]) -> dict[str, str]:
        """Return settings by Redis name, without the names of keys and tenants.

        Limits of types remain, limits of keys are in the jobs. Tenants have the same hashes as in their jobs.
        """
        limits = [item for item in settings.get("limits", "").split() if item.startswith((OF_TYPE, _ENCODED_OF_TYPE))]
        tenants = []
        for entry in settings.get("tenants", "").split():
            name, _, quota = entry.rpartition("=")
            tenants.append(entry if name == OTHERS else f"{self.of('tenant', name)}={quota}")
        return {**settings, "limits": " ".join(limits), "tenants": " ".join(tenants)}


def due_options(enqueued_us: int, due: str = "", head: str = "") -> dict[str, Any]:
    """Return the options of a `TracedJob` in the fields ``due`` and ``head`` of a job hash, which can be damaged."""
    _, *words = due.split(" ")
    number_of = {word[0]: int(word[1:]) for word in words if _DUE_WORD.fullmatch(word)}
    options: dict[str, Any] = {}
    if "s" in number_of:
        options["size"] = number_of["s"] / SECOND_US
    if "w" in number_of:
        options["start_within_us"] = number_of["w"]
    if "d" in number_of:
        options["deadline_us"] = number_of["d"] - enqueued_us
    if due:
        options["head_us"] = decode_number(head)
    return options


#: A word of the field ``due`` of a job hash: the deadline is a time since the epoch.
_DUE_WORD = re.compile(rf"[wds][0-9]{{1,{MAX_DUE_DIGITS}}}")
#: Lines of facts for a plain claim whose times were queried: time of the claim, time of its end. A claim without a lane
#: has one line.
_LINES_OF_PLAIN = 2
#: The server's time of a claim or an end is at most this many µs later than the worker's time. A later time belongs
#: to another claim of the job.
_MAX_LATER_US = SECOND_US


def traced_job(type: str, enqueued_us: int, lane: str, options: Mapping[str, Any], **fields: Any) -> TracedJob:
    """Return a job in *lane*. *options*: see `KeyHashes.options`. *fields*: the other fields of `TracedJob`."""
    priority = decode_number(lane.rpartition(".")[2])
    on_demand = values.is_on_demand(lane)
    return TracedJob(type, enqueued_us, enqueued_us, **fields, on_demand=on_demand, priority=priority, **options)


class RecordedClaim(NamedTuple):
    """A claim. The times of *job* are in µs of the server's clock, and its worker is an id."""

    job_id: str
    job: TracedJob
    brought_by: int = 0  #: worker's number of the release whose reply delivered it, or 0
    release: int = 0  #: worker's number of the release that reported its end, or 0

    def corrected(self, worker: "_Worker") -> TracedJob:
        """Return the job with the times of the worker's releases.

        The order of the times is restored, despite the worker's estimates and steps of the server's clock. A claim of a
        dead worker has ended: its job was requeued, or lost.
        """
        job, latest_us = self.job, sys.maxsize
        claimed_us = max(worker.released_us.get(self.brought_by, job.claimed_us or 0), job.enqueued_us)
        started_us, ended_us, freed_us, outcome = job.started_us, job.ended_us, job.freed_us, job.outcome
        if freed_us is not None:
            latest_us = freed_us = max(worker.released_us.get(self.release, freed_us), claimed_us)
        if ended_us is None and worker.left_us is not None:
            ended_us, outcome = worker.left_us, RETURNED
        if started_us is not None:
            started_us = min(max(started_us, claimed_us), latest_us)
        if ended_us is not None:
            ended_us = min(max(ended_us, started_us or claimed_us), latest_us)
        times_us: dict[str, Any] = {
            "claimed_us": claimed_us,
            "started_us": started_us,
            "ended_us": ended_us,
            "freed_us": freed_us,
        }
        return replace(job, outcome=outcome, **times_us)


def claims_in(page: Page, worker: str, hashes: KeyHashes, released_us: dict[int, int]) -> list[RecordedClaim]:
    """Return the claims in the rows of a *page* with the facts that the server added. Raises ValueError.

    *released_us*: gets the times of the worker's releases by their number.
    """
    rows = messages.read_rows(page.claims)
    plain = _LINES_OF_PLAIN * sum(is_queried for _, is_queried in rows)
    of_plain, of_others = iter(page.told[:plain]), iter(page.told[plain:])
    claims = []
    for row, is_queried in rows:
        (_, lane, _, known_task), size, rest = row[2], row[-1], ""
        if lane:
            claimed, ended = (next(of_plain, "") if is_queried else "" for _ in range(_LINES_OF_PLAIN))
        else:
            lane, claimed, ended, rest = (*next(of_others, "").split(" ", 3), "", "", "", "")[:4]
        rules, task, due, head = (*rest.split("\t"), "", "", "")[:4]
        times_us = int(claimed) if claimed else None, int(ended) if ended else None
        options = {"task": known_task or task or None, "size": size, **due_options(row[3], due, head)}
        options |= hashes.options(rules, task)
        claims.append(_claim(row, worker, sys.intern(lane), options, times_us, released_us))
    return claims


def _claim(
    row: ClaimRow,
    worker: str,
    lane: str,
    options: Mapping[str, Any],
    server_times_us: tuple[int | None, int | None],
    released_us: dict[int, int],
) -> RecordedClaim:
    """Return the claim in *row*. *server_times_us*: of the claim and its end, None if the job hash has no such time."""
    job_id, fence, (type_, _, outcome, _), enqueued_us, arrived, *passed_us, brought_by, release, _ = row
    if outcome not in OUTCOMES:
        raise ValueError(outcome)
    started_us, ended_us, freed_us = (None if passed is None else enqueued_us + passed for passed in passed_us)
    on_claim_us, on_end_us = server_times_us
    claimed_us = _server_time(on_claim_us, enqueued_us + arrived)
    if brought_by and on_claim_us:
        released_us[brought_by] = claimed_us
    if freed_us is not None and (on_end_us or 0) >= claimed_us:
        freed_us = _server_time(on_end_us, freed_us)
        if release:
            released_us[release] = freed_us
    job = traced_job(
        type_,
        enqueued_us,
        lane,
        options,
        fence=int(fence),
        claimed_us=claimed_us,
        started_us=started_us,
        ended_us=ended_us,
        freed_us=freed_us,
        outcome=outcome,
        worker=worker,
    )
    return RecordedClaim(job_id, job, brought_by, release)


def _server_time(server_us: int | None, worker_us: int) -> int:
    """Return the server's time; *worker_us* without a server time, or if that belongs to another claim."""
    return worker_us if server_us is None or server_us > worker_us + _MAX_LATER_US else server_us


@dataclass(slots=True)
class _Worker:
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

    def add(self, page: Page) -> None:
        """Add a worker's page. Unreadable pages are counted."""
        try:
            worker = self._worker(json.loads(page.worker))
        except (ValueError, KeyError, TypeError):
            self._unreadable += 1
            return
        with suppress(ValueError):  # the missing claims are counted, because the page has the number of ended claims
            for claim in claims_in(page, worker.id, self._hashes, worker.released_us):
                fence = claim.job.fence or 0
                before = self._claims.get(fence)
                if before is None or (before.job.ended_us is None and claim.job.ended_us is not None):
                    self._claims[fence] = claim  # otherwise the page was repeated, or is older

    def _worker(self, facts: Mapping[str, Any]) -> _Worker:
        id_, to_us, since_us = str(facts["worker"]), int(facts["to"]), int(facts["since"])
        types, slots = tuple(sorted(map(sys.intern, facts["types"]))), int(facts["slots"])
        joined_us = since_us if facts["joined"] is None else int(facts["joined"])
        worker = self._workers.setdefault(id_, _Worker(id_, str(facts["name"]), joined_us))
        worker.since_us = since_us if worker.since_us is None else worker.since_us
        if to_us > (worker.left_us or 0):
            worker.left_us = None  # it was declared dead
        worker.up_to_us = max(worker.up_to_us, to_us)
        worker.ended[since_us] = int(facts["ended"])
        if not worker.spans or worker.spans[-1][1:] != (types, slots):
            worker.spans.append((max(to_us, since_us) if worker.spans else joined_us, types, slots))
        if "left" in facts:
            worker.left_us = int(facts["left"])
        return worker

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

    def trace(self, begin_us: int, end_us: int, unclaimed: Iterable[tuple[str, TracedJob]], **facts: Any) -> Trace:
        """Return the trace from *begin_us* to *end_us*. *facts*: the other fields of `Trace`.

        *unclaimed*: ids and jobs without a claim at the end of the trace, which wait or have ended.
        """
        names = self._names()
        jobs = list(self._jobs(begin_us, end_us, unclaimed, names))
        jobs.sort(key=lambda job: (job.since_us, job.fence or sys.maxsize))
        workers = tuple(self._traced_workers(begin_us, end_us, names))
        return Trace(end_us - begin_us, workers, tuple(jobs), lost=self._lost(), **facts)

    def _jobs(
        self, begin_us: int, end_us: int, unclaimed: Iterable[tuple[str, TracedJob]], names: Mapping[str, str]
    ) -> Iterator[TracedJob]:
        requeued_us: dict[str, int] = {}  # job id -> time of its last requeue
        traced = set()
        for fence in sorted(self._claims):
            claim = self._claims[fence]
            id_, worker = claim.job_id, self._workers[claim.job.worker or ""]
            job = claim.corrected(worker)
            claimed_us = job.claimed_us or 0
            since_us = min(max(job.enqueued_us, requeued_us.get(id_, job.enqueued_us)), claimed_us)
            if id_ in traced or since_us > end_us:
                continue
            if job.ended_us is not None:
                requeued_us[id_] = job.ended_us
            if job.ended_us is None or max(job.ended_us, job.freed_us or 0) >= begin_us:
                yield _cut(replace(job, since_us=since_us, worker=names[worker.id]), begin_us, end_us)
            if job.ended_us is None or job.ended_us > end_us or claimed_us > end_us:
                traced.add(id_)
        for id_, job in unclaimed:
            since_us = max(job.enqueued_us, requeued_us.get(id_, job.enqueued_us))
            if id_ not in traced and since_us <= end_us:
                ended_us = None if job.ended_us is None else max(job.ended_us, since_us)
                waiting = replace(job, type=sys.intern(job.type), since_us=since_us, ended_us=ended_us)
                yield replace(waiting, **relative_times(waiting, begin_us))

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

    def _traced_workers(self, begin_us: int, end_us: int, names: Mapping[str, str]) -> list[TracedWorker]:
        traced = []
        for worker in self._workers.values():
            ends = [span[0] for span in worker.spans[1:]] + [worker.left_us]
            for (from_us, types, slots), to_us in zip(worker.spans, ends, strict=True):
                if from_us > end_us or (to_us is not None and to_us <= begin_us):
                    continue
                left_us = None if to_us is None or to_us > end_us else to_us - begin_us
                traced.append(TracedWorker(names[worker.id], types, slots, max(0, from_us - begin_us), left_us))
        return sorted(traced, key=lambda worker: (worker.joined_us, worker.name))

    def _lost(self) -> int:
        """Return the number of missing claims: reported as ended by workers, or unreadable."""
        gone = {worker.id for worker in self._workers.values() if worker.left_us is not None}  # their claims have ended
        jobs = (claim.job for claim in self._claims.values())
        ended = Counter(job.worker for job in jobs if job.outcome != RUNNING or job.worker in gone)
        missing = (sum(worker.ended.values()) - ended[worker.id] for worker in self._workers.values())
        return self._unreadable + sum(max(0, number) for number in missing)


def _cut(job: TracedJob, begin_us: int, end_us: int) -> TracedJob:
    """Return a claimed *job* as it was at *end_us*, with times relative to *begin_us*."""
    ended_us = None if job.ended_us is None else max(job.ended_us, begin_us)  # the server received it later
    times_us = relative_times(replace(job, ended_us=ended_us), begin_us, end_us)
    if times_us["claimed_us"] is None:
        return replace(job, **times_us, outcome=PENDING, worker=None, fence=None)
    return replace(job, **times_us, outcome=RUNNING if times_us["ended_us"] is None else job.outcome)
