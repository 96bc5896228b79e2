"""Arguments and replies of the server functions that `Scheduler` invokes, and the pages of a recording.

A worker writes the claims of a recording in pages while tasks run. A page consists of columns: rows differ in few
values, and a column is encoded as JSON in one step.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..broker.client import Reply
from ..clock import SECOND_US, ServerTime
from ..errors import QueueFull
from ..log_limit import limited_logger
from ..lua.library import Argument
from ..schema import job_record, values
from ..schema.constants import IS_DUE, IS_FULL, IS_MERGED, IS_REFUSED, WAS_PREEMPTED, WAS_REQUEUED
from ..schema.job_record import NewJob
from ..schema.values import decode_number, decode_text


class EndArguments(NamedTuple):
    """The end of a claimed job. *outcome*: an outcome of ``release`` ("acked", "failed", ...), or one with a reason."""

    job_id: str
    fence: str
    outcome: str


@dataclass(frozen=True)
class JoinArguments:
    """The properties of a worker that joins."""

    worker: str
    name: str
    types: Sequence[str]
    slots: int  #: the concurrency
    other: int = 0  #: slots taken without a claim, minus the slots that claims lend
    app: str = ""
    withdrawn: Sequence[str] = ()  #: types that the worker will serve again soon
    stops: str = ""  #: the tasks that the worker can stop (`Pool.stops` in `leases.host`)
    priority: int = 0  #: rank among equally specialised workers (``affinity_placement``)

    @property
    def encoded_types(self) -> list[str]:
        """The types of the profile, including withdrawn types: withdrawing does not make a worker a specialist."""
        types = {*self.types, *map(values.withdrawn_mark, self.withdrawn)}
        return sorted(map(values.encode_part, types))

    @property
    def profile(self) -> str:
        """The short name that all workers with exactly these types share."""
        return hashlib.sha1(" ".join(self.encoded_types).encode(), usedforsecurity=False).hexdigest()[:16]

    @property
    def arguments(self) -> dict[str, Argument]:
        """The arguments for `join`, by name."""
        return {
            "worker": self.worker,
            "name": values.encode_part(self.name),
            "slots_in_all": self.slots,
            "other": self.other,
            "profile": self.profile,
            "types": " ".join(self.encoded_types),
            "app": values.encode_part(self.app),
            "stops": self.stops,
            "priority": self.priority,
        }


class ClaimReport(NamedTuple):
    """A claim that its worker reports as held."""

    job_id: str
    fence: str
    running_us: int  #: time since the task started, -1 if it has not


class TypeMetricsDelta(NamedTuple):
    """The metrics that a worker has collected for the jobs of *type* since its previous report."""

    type: str
    grown: Mapping[str, int]  #: metrics field -> increment
    ended: int = 0  #: number of jobs that ended in a slot
    took_us: int = 0  #: total time of these jobs in their slots
    pace: str = ""  #: the worker's pace as text (`policy.pace`); "" if no job ended

    @property
    def words(self) -> list[Argument]:
        """The arguments for `add_metrics`."""
        fields = [argument for field in self.grown.items() for argument in field]
        return [values.encode_part(self.type), self.ended, self.took_us, self.pace, len(self.grown), *fields]


class TaskRuns(NamedTuple):
    """Successful runs of *task* since the worker's previous report."""

    task: str
    number: int
    last: Sequence[tuple[float | None, int]]  #: size (None: unknown) and run time in µs of the last ones

    @property
    def line(self) -> str:
        """The runs in the format of `add_metrics`."""
        runs = (f" {'-' if size is None else repr(float(size))} {took_us}" for size, took_us in self.last)
        return f"{values.encode_part(self.task)} {self.number}{''.join(runs)}"


logger = limited_logger(__name__)
#: Number of digits in Redis's largest integer.
MAX_FENCE_LENGTH = 19


class Claim(NamedTuple):
    """A job as delivered to a worker. The fencing token distinguishes this delivery from the job's other deliveries."""

    job_id: str
    fence: str
    type: str
    deliveries: int
    enqueued_us: int
    message: bytes
    expires_us: int | None = None  #: server time at which the job ends if it has not started; None: never
    urgency: tuple[bool, int] | None = None  #: (on-demand, priority) of a moved job; None: the message has both
    preemptions: int = 0  #: number of times that the task was stopped for another tenant's
    requeues: int = 0  #: number of times that the task requeued itself
    due_us: int | None = None  #: server time at which the job should start, by its own rules

    @property
    def mark_ending(self) -> bool:
        """True if the task may have started before."""
        return self.deliveries > 0 or self.preemptions > 0 or self.requeues > 0

    @classmethod
    def parse(cls, payload: bytes) -> "Claim":
        """Return the claim in *payload*: a line of facts, then the message. Raises ValueError if it is invalid."""
        facts, _, message = payload.partition(b"\n")
        return cls.of(facts, message)

    @classmethod
    def of(cls, facts: bytes, message: bytes) -> "Claim":
        """Return the claim with *facts*, separated by spaces. Raises ValueError if they are invalid."""
        job_id, fence, type_, deliveries, enqueued, *further = facts.decode().split(" ")
        if not (job_id and fence.isascii() and fence.isdigit() and len(fence) <= MAX_FENCE_LENGTH and int(fence)):
            raise ValueError("it has no job id, or no fencing number")
        due_us = int(further.pop().removeprefix(IS_DUE)) if further and further[-1].startswith(IS_DUE) else None
        requeues = int(further.pop().removeprefix(WAS_REQUEUED)) if further and further[-1][:1] == "r" else 0
        preemptions = int(further.pop().removeprefix(WAS_PREEMPTED)) if further and further[-1][:1] == "p" else 0
        if len(further) > 2:
            raise ValueError("it has more facts than there are")
        expires = further[0] if further else "-"
        urgency = None
        if len(further) == 2:
            mode, _, priority = further[1].partition(".")
            urgency = mode == values.DEMAND, int(priority)
        expires_us = None if expires == "-" else int(expires)
        type_ = values.decode_part(type_)
        numbers = int(deliveries), int(enqueued)
        return cls(job_id, fence, type_, *numbers, message, expires_us, urgency, preemptions, requeues, due_us)


def parse_claims(parts: Sequence[bytes]) -> list[Claim]:
    """Return the claims in *parts* (facts, message, ...). Unreadable claims are left out: a sync requeues them."""
    claims = []
    for facts, message in zip(parts[::2], parts[1::2], strict=False):
        try:
            claims.append(Claim.of(facts, message))
        except ValueError as exc:
            logger.error(
                "A job from the server cannot be read and is returned to its queue: %s. It was %r", exc, facts[:200]
            )
    return claims


class PublishReply(NamedTuple):
    """The outcome of publishing a job."""

    fresh: bool  #: True if the id was new
    served: bool  #: True if a live worker serves the type
    refused: str | None = None  #: the field for which the server rejected the job
    merged: bool = False  #: True if the call joined waiting calls
    full: QueueFull | None = None  #: the error if this job, or another of its call, exceeds a bound: none is published

    @classmethod
    def parse(cls, state: int, served: Reply) -> "PublishReply":
        """Return the outcome in a function's reply for one job.

        *served*: for a rejected job, the field's name; for a job beyond its bound, type, pending jobs and bound.
        """
        if state == IS_REFUSED:
            return cls(False, True, served.decode())
        if state == IS_FULL:
            type_, pending, max_pending = served.decode().split(" ")
            return cls(False, True, full=QueueFull(values.decode_part(type_), int(pending), int(max_pending)))
        return cls(bool(state), bool(served), merged=state == IS_MERGED)

    def check(self, job: NewJob) -> None:
        """Raise OptionError if *job* was rejected, QueueFull if it exceeds its bound."""
        if self.full is not None:
            raise self.full
        if self.refused is not None:
            raise job_record.refusal(self.refused, job.arguments)


class JoinReply(NamedTuple):
    namesake: str | None  #: another live worker with the same node name
    replaced: list[str]  #: settings that changed
    #: Highest fencing token of claims that the worker does not own, because it is new or was considered dead; 0 if it
    #: rejoined in time.
    void_up_to: int
    now_us: int  #: the server's time


class SyncReply(NamedTuple):
    is_registered: bool  #: False if the worker must join again
    ticker: bool  #: True if the worker must tick for the fleet
    unnamed: list[tuple[str, str]]  #: claims (job id, fencing token) that the worker did not name
    void: list[str]  #: ids of jobs that the worker named, but has lost
    revision: int  #: revision of the settings in force
    now_us: int  #: the server's time
    returned: int  #: number of the worker's jobs that are pending again


class JobState(NamedTuple):
    """The state of a job, or of the run that it was merged into."""

    state: str  #: "" for a missing job
    calls: int  #: number of calls in the run

    @property
    def waits(self) -> bool:
        """True if the job waits for a slot or for its time."""
        return self.state in ("pending", "scheduled")


class RevokeReply(NamedTuple):
    """The outcome of `revoke`."""

    jobs: int  #: number of jobs that ended
    others: list[str]  #: task ids and stamps with a job that did not wait, or without jobs


class MoveReply(NamedTuple):
    """The outcome of `move`."""

    served: bool  #: True if a live worker serves the type
    found: list[JobState]  #: each job as it was before


class TickReply(NamedTuple):
    next_due_s: float | None  #: seconds until the next scheduled job or recurring call is due
    due: int
    recovered: int
    dead_workers: list[str]  #: names of silent workers that were removed
    unreported: bool  #: True if there are unreported ends (`Scheduler.next_report`)
    recurring: bool  #: True if recurring calls must be made (`Scheduler.due_recurring`)
    lists: list[str]  #: stock Celery's lists that contain messages
    time: ServerTime  #: the server's time at the tick


class DueCall(NamedTuple):
    name: str
    due: str  #: argument of `Scheduler.fire_recurring`, which ensures that the call is made only once
    task: str
    signature: str

    @classmethod
    def parse(cls, row: Sequence[bytes]) -> "DueCall":
        """Return the call in a row of `due_recurring`."""
        name, due, task, signature = map(decode_text, row)
        return cls(values.decode_part(name), due, task, signature)


class BatchCall(NamedTuple):
    job_id: str
    task_id: str
    published_us: int  #: server time of the publish, for a retry the first attempt's
    message: bytes  #: as kombu sent it, b"" if it was deleted


class BatchCallsPage(NamedTuple):
    after: int | None  #: argument for the next page; None after the last one
    primary_us: int  #: `published_us` of the call whose message the worker has; 0 if no worker has one
    callers: list[BatchCall]

    @classmethod
    def parse(cls, after: int, primary: bytes, *columns: bytes) -> "BatchCallsPage":
        """Return the page in a reply of `batch_calls`."""
        rows = zip(columns[::4], columns[1::4], columns[2::4], columns[3::4], strict=True)
        callers = [
            BatchCall(
                job_id.decode(errors="surrogateescape"),
                values.decode_part(decode_text(task)),
                decode_number(published),
                message,
            )
            for job_id, task, published, message in rows
        ]
        return cls(None if after < 0 else after, decode_number(primary), callers)


class UnreportedEnd(NamedTuple):
    """A job that ended without a worker."""

    job_id: str
    #: "revoked", "expired", "dropped" or a key of `dead_reasons.REASONS`; "" if only the id is readable. For a batch,
    #: also "shared": the run has ended, but some calls have not received its result.
    how: str
    type: str = ""
    task_id: str = ""
    task_name: str = ""
    deliveries: int = 0
    since_s: float = 0.0  #: seconds since the end
    for_anyone: bool = True  #: True if an app that does not define the task should report the end too
    message: bytes | None = b""  #: as kombu sent it, b"" if deleted, None if it is large (`Reader.message_of`)

    @classmethod
    def parse(cls, row: Sequence[Reply]) -> "UnreportedEnd":
        """Return the end in a row of `next_report`."""
        job_id, *facts = row
        try:
            how, type_, task_id, name, deliveries, since_us, for_anyone, message = facts
            return cls(
                job_id.decode(),
                how.decode(),
                values.decode_part(type_.decode()),
                values.decode_part(task_id.decode()),
                name.decode(),
                int(deliveries),
                int(since_us) / SECOND_US,
                bool(for_anyone),
                message,
            )
        except (ValueError, AttributeError, TypeError):  # AttributeError: a missing field
            return cls(job_id.decode(errors="surrogateescape"), "")


#: Type, lane and outcome of a claim. The lane is "" if lane, rules and owner must come from the job hash.
Kind = tuple[str, str, str]
#: Job id, fencing token, kind and enqueue time of a claim; then the times in µs since the enqueue time at which it
#: arrived at the worker, its task started, it ended, and the server confirmed that its slot is free or has another job
#: (None: did not happen); then the worker's numbers of the release whose reply delivered the claim, and of the release
#: that reported its end (0: none).
ClaimRow = tuple[str, str, Kind, int, int, int | None, int | None, int | None, int, int]


class PageQuery(NamedTuple):
    """A page of claims, and the jobs whose facts its server must add."""

    text: str
    plain: Sequence[str]  #: ids of jobs for which only times are needed
    others: Sequence[str]  #: job ids, each followed by its fencing token


def page_query(rows: Sequence[ClaimRow]) -> PageQuery:
    """Return *rows* as a page with the jobs whose server times cover all rows.

    The releases that delivered a job and reported its end have a job's server times. With one job per slot, every other
    job is enough.
    """
    if not rows:
        return PageQuery("", (), ())
    jobs, fences, kinds, enqueued, arrived, started, ended, freed, brought_by, releases = zip(*rows, strict=True)
    kind_indexes: dict[Kind, int] = {}
    kind_column = [kind_indexes.setdefault(kind, len(kind_indexes)) for kind in kinds]
    is_plain, covered = [0] * len(rows), {0}
    plain: list[str] = []
    others: list[int] = []
    for index in range(len(rows) - 1, -1, -1):
        if not kinds[index][1]:
            others.append(index)
        elif releases[index] not in covered or not brought_by[index]:
            is_plain[index] = 1
            plain.append(jobs[index])
            covered.add(releases[index])
            covered.add(brought_by[index])
    columns = (jobs, fences, kind_column, enqueued, arrived, started, ended, freed, brought_by, releases, is_plain)
    text = json.dumps([list(kind_indexes), *columns], separators=(",", ":"), check_circular=False)
    return PageQuery(text, plain[::-1], [part for nth in reversed(others) for part in (jobs[nth], fences[nth])])


def read_rows(text: str) -> list[tuple[ClaimRow, bool]]:
    """Return the rows of a page, each with True if its times were queried. Raises ValueError for an invalid page."""
    if not text:
        return []
    try:
        kinds, jobs, fences, kind_column, *numbers = json.loads(text)
        known_kinds = [tuple(map(_require_text, kind)) for kind in kinds]
        rows = zip(
            map(_require_text, jobs),
            map(_require_text, fences),
            [known_kinds[index] for index in kind_column],
            *numbers,
            strict=True,
        )
        return [_parse_row(row) for row in rows]
    except (TypeError, IndexError, RecursionError) as exc:
        raise ValueError(f"it is no page of claims: {exc}") from None


def _parse_row(row: tuple[Any, ...]) -> tuple[ClaimRow, bool]:
    job, fence, (type_, lane, outcome), enqueued, arrived, *times, brought_by, release, is_plain = row
    started, ended, freed = (None if time is None else _require_integer(time) for time in times)
    enqueued, arrived, brought_by, release = map(_require_integer, (enqueued, arrived, brought_by, release))
    passed = started, ended, freed
    return (job, fence, (type_, lane, outcome), enqueued, arrived, *passed, brought_by, release), bool(is_plain)


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is expected, got: {value!r:.80}")
    return sys.intern(value)


def _require_integer(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"a whole number is expected, got: {value!r:.80}")
    return value
