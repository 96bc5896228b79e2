"""What `Scheduler` takes for the arrows: how jobs ended, who joins, which claims a worker holds, what it adds up.

What `Scheduler` returns: the replies of the arrows, read.

Claims as a worker hands them over to a recording, in pages: a page is a text of columns, which is read here as well.

A page is written while tasks run. Its rows differ in few of their values, and columns are put into JSON all at once.
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
from ..schema.constants import IS_FULL, IS_MERGED, IS_REFUSED, WAS_PREEMPTED, WAS_REQUEUED
from ..schema.job_record import NewJob
from ..schema.values import decode_number, decode_text


class EndArguments(NamedTuple):
    """The end of a claimed job. *outcome*: a word of ``release.lua`` ("acked", "failed", ...), and a reason, if any."""

    job_id: str
    fence: str
    outcome: str


@dataclass(frozen=True)
class JoinArguments:
    """The words in which a worker of *app* presents itself when it joins. *slots*: the concurrency.

    *other*: slots taken without a claim, less those that claims lend. *withdrawn*: types that the worker will serve
    again soon. *stops*: which tasks it can stop (`Pool.stops` in `membership.host`). *priority*: its place among
    equally specialised workers (``affinity_placement``).
    """

    worker: str
    name: str
    types: Sequence[str]
    slots: int
    other: int = 0
    app: str = ""
    withdrawn: Sequence[str] = ()
    stops: str = ""
    priority: int = 0

    @property
    def encoded_types(self) -> list[str]:
        """The types of the profile. A type that the worker withdrew from counts: withdrawing makes no specialist."""
        types = {*self.types, *map(values.withdrawn_mark, self.withdrawn)}
        return sorted(map(values.encode_part, types))

    @property
    def profile(self) -> str:
        """A short name of the set of types, shared by all workers that serve just these types."""
        return hashlib.sha1(" ".join(self.encoded_types).encode(), usedforsecurity=False).hexdigest()[:16]


class ClaimReport(NamedTuple):
    """A claim that its worker says it holds. *running_us*: time since the task started, -1 if it has not."""

    job_id: str
    fence: str
    running_us: int


class TypeMetricsDelta(NamedTuple):
    """What a worker adds up of its jobs of *type*, since it did so last. *grown*: field of the metrics -> by how much.

    *ended*: number of jobs that ended in a slot. *took_us*: the sum of their times there. *pace*: the worker's, in
    words (`rules.pace`); "" if none ended.
    """

    type: str
    grown: Mapping[str, int]
    ended: int = 0
    took_us: int = 0
    pace: str = ""

    @property
    def words(self) -> list[Argument]:
        """The sums as the arrow takes them."""
        fields = [word for each in self.grown.items() for word in each]
        return [values.encode_part(self.type), self.ended, self.took_us, self.pace, len(self.grown), *fields]


logger = limited_logger(__name__)

#: Number of digits of the largest number that Redis counts to.
LONGEST_FENCE = 19


class Claim(NamedTuple):
    """A job as a worker got it. The fencing number tells this delivery from every other one of the job.

    *expires_us*: time when the job ends if it has not started, by the server's clock; None: never. *urgency*: whether
    the job is on demand, and its priority, if the job was moved; None: the message says that. *preemptions*: number of
    times that its task was stopped for another tenant's. *requeues*: number of times that its task requeued it.
    """

    job_id: str
    fence: str
    type: str
    deliveries: int
    enqueued_us: int
    message: bytes
    expires_us: int | None = None
    urgency: tuple[bool, int] | None = None
    preemptions: int = 0
    requeues: int = 0

    @property
    def mark_ending(self) -> bool:
        """Whether its task may have started before."""
        return self.deliveries > 0 or self.preemptions > 0 or self.requeues > 0

    @classmethod
    def parse(cls, payload: bytes) -> "Claim":
        """Return the claim in *payload*: a line of facts, then the message. Raises ValueError if it is none."""
        facts, _, message = payload.partition(b"\n")
        return cls.of(facts, message)

    @classmethod
    def of(cls, facts: bytes, message: bytes) -> "Claim":
        """Return the claim of which *facts* are told in words. Raises ValueError if they are not."""
        job_id, fence, type_, deliveries, enqueued, *further = facts.decode().split(" ")
        if not (job_id and fence.isascii() and fence.isdigit() and len(fence) <= LONGEST_FENCE and int(fence)):
            raise ValueError("it has no job id, or no fencing number")
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
        return cls(job_id, fence, type_, *numbers, message, expires_us, urgency, preemptions, requeues)


def parse_claims(parts: Sequence[bytes]) -> list[Claim]:
    """Return the claims in *parts*: facts and message of each.

    An unreadable one counts as lost on its way, so a sync gives the job back.
    """
    found = []
    for facts, message in zip(parts[::2], parts[1::2], strict=False):
        try:
            found.append(Claim.of(facts, message))
        except ValueError as exc:
            logger.error("A job from the server cannot be read and is given back: %s. It was %r", exc, facts[:200])
    return found


class PublishReply(NamedTuple):
    """The outcome of a job's publish. *fresh*: whether the id was new. *served*: whether a live worker serves the type.

    *refused*: the field for which the server refused the job; None if it did not. *merged*: whether the call joined
    others that wait. *full*: the error, if the job, or another of its call, found no room: none is published.
    """

    fresh: bool
    served: bool
    refused: str | None = None
    merged: bool = False
    full: QueueFull | None = None

    @classmethod
    def parse(cls, state: int, served: Reply) -> "PublishReply":
        """Return the outcome in an arrow's reply for one job.

        *served*: for a refused job, the name of the field; for one without room, type, jobs that wait, and its bound.
        """
        if state == IS_REFUSED:
            return cls(False, True, served.decode())
        if state == IS_FULL:
            type_, pending, most = served.decode().split(" ")
            return cls(False, True, full=QueueFull(values.decode_part(type_), int(pending), int(most)))
        return cls(bool(state), bool(served), merged=state == IS_MERGED)

    def check(self, job: NewJob) -> None:
        """Raise OptionError if *job* was refused; QueueFull if it found no room."""
        if self.full is not None:
            raise self.full
        if self.refused is not None:
            raise job_record.refusal(self.refused, job.arguments)


class JoinReply(NamedTuple):
    """The reply to a join. *namesake*: another live worker of that node name. *replaced*: settings that changed.

    *void_up_to*: highest fencing number of claims that are not the worker's, since it is new, or had been taken for
    dead; 0 for a worker that came back in time. *now_us*: the server's time.
    """

    namesake: str | None
    replaced: list[str]
    void_up_to: int
    now_us: int


class SyncReply(NamedTuple):
    """The reply to a sync. Not *known*: the worker has to join again.

    *asked*: claims (job id, fencing number) that the worker did not name. *void*: ids of jobs that the worker named,
    and that are no longer its own. *revision*: that of the settings in force. *now_us*: the server's time.
    *returned*: the number of the worker's jobs that are pending again.
    """

    known: bool
    ticker: bool
    asked: list[tuple[str, str]]
    void: list[str]
    revision: int
    now_us: int
    returned: int


class JobState(NamedTuple):
    """The *state* of a job, or of the run that it was merged into; "": it is not known. *calls*: those of the run."""

    state: str
    calls: int

    @property
    def waits(self) -> bool:
        """Whether it waits for a slot, or for its time."""
        return self.state in ("pending", "scheduled")


class MoveReply(NamedTuple):
    """The outcome of `move`. *served*: whether a live worker serves the type. *found*: each job as it was before."""

    served: bool
    found: list[JobState]


class TickReply(NamedTuple):
    """The reply to a tick. *next_due_s*: the time until a scheduled job, or a recurring call, is due; None: none is.

    *untold*: whether there are ends to be told (`Scheduler.announce`). *recurring*: whether there are recurring calls
    to be made (`Scheduler.due`). *lists*: stock Celery's lists that hold messages. *time*: the server's, at the tick.
    """

    next_due_s: float | None
    due: int
    recovered: int
    dead_workers: int
    untold: bool
    recurring: bool
    lists: list[str]
    time: ServerTime


class DueCall(NamedTuple):
    """A recurring call that is due. *due*: an argument of `Scheduler.fire`, by which the call is made only once."""

    name: str
    due: str
    task: str
    signature: str

    @classmethod
    def parse(cls, row: Sequence[bytes]) -> "DueCall":
        """Return the call in a row of `due`."""
        name, due, task, signature = map(decode_text, row)
        return cls(values.decode_part(name), due, task, signature)


class BatchCall(NamedTuple):
    """A call of a batch. *published_us*: when it was published, by the server's clock, a retry as its first try was.

    *message*: as kombu sent it, b"" if it is gone.
    """

    job_id: str
    task_id: str
    published_us: int
    message: bytes


class BatchCallsPage(NamedTuple):
    """A page of the calls of a batch. *after*: the argument for the next page; None if there is none.

    *primary_us*: when the call was published whose message the worker has, as of a `Caller`; 0 if no worker has one.
    """

    after: int | None
    primary_us: int
    callers: list[BatchCall]

    @classmethod
    def parse(cls, after: int, primary: bytes, *found: bytes) -> "BatchCallsPage":
        """Return the page in a reply of `callers`."""
        rows = zip(found[::4], found[1::4], found[2::4], found[3::4], strict=True)
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
    """A job that ended without a worker. *how*: "revoked", "expired", "dropped", or one of `dead_reasons.REASONS`; ""
    if only the id can be read. Of a batch also "shared": its run has ended, calls do not know their result.

    *since_s*: the time since the end. *for_anyone*: whether an app that does not know the task tells the end as well.
    *message*: as kombu sent it, b"" if it is gone, None if it is large (`Reader.message_of`).
    """

    job_id: str
    how: str
    type: str = ""
    task_id: str = ""
    task_name: str = ""
    deliveries: int = 0
    since_s: float = 0.0
    for_anyone: bool = True
    message: bytes | None = b""

    @classmethod
    def parse(cls, row: Sequence[Reply]) -> "UnreportedEnd":
        """Return the end in a row of `announce`."""
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
        except (ValueError, AttributeError, TypeError):  # AttributeError: there is no such field
            return cls(job_id.decode(errors="surrogateescape"), "")


#: Type of the job, its lane, and the outcome of the claim. The lane is "" where the job's row is to say it, and the
#: job's rules, and whose claim it is.
Kind = tuple[str, str, str]

#: Job id, fencing number, kind and enqueue time of a claim; how long after that, µs, it arrived at the worker, its task
#: started, it ended, and the server's word came that its slot is free, or has another job (None: it did not happen);
#: numbers, in the worker, of the release whose reply brought it, and of the one that told its end (0: none).
ClaimRow = tuple[str, str, Kind, int, int, int | None, int | None, int | None, int, int]


class PageQuery(NamedTuple):
    """A page, and the jobs of which its server is asked: ids of *plain* ones, of which times alone are asked for.

    *others*: each job id, and its fencing number behind it.
    """

    text: str
    plain: Sequence[str]
    others: Sequence[str]


def page_query(rows: Sequence[ClaimRow]) -> PageQuery:
    """Return *rows* as a page, and which of their jobs tell the times of all.

    The times of a job are those of the release that brought it, and of the one that told its end: with one job for each
    slot, every other one is enough.
    """
    if not rows:
        return PageQuery("", (), ())
    jobs, fences, kinds, enqueued, arrived, started, ended, freed, brought_by, releases = zip(*rows, strict=True)
    nths: dict[Kind, int] = {}
    nth_kinds = [nths.setdefault(kind, len(nths)) for kind in kinds]
    asked, known = [0] * len(rows), {0}
    plain: list[str] = []
    others: list[int] = []
    for nth in range(len(rows) - 1, -1, -1):
        if not kinds[nth][1]:
            others.append(nth)
        elif releases[nth] not in known or not brought_by[nth]:
            asked[nth] = 1
            plain.append(jobs[nth])
            known.add(releases[nth])
            known.add(brought_by[nth])
    columns = (jobs, fences, nth_kinds, enqueued, arrived, started, ended, freed, brought_by, releases, asked)
    text = json.dumps([list(nths), *columns], separators=(",", ":"), check_circular=False)
    return PageQuery(text, plain[::-1], [word for nth in reversed(others) for word in (jobs[nth], fences[nth])])


def read_rows(text: str) -> list[tuple[ClaimRow, bool]]:
    """Return the rows of a page, and of each whether its times were asked for. Raises ValueError if it is no page."""
    if not text:
        return []
    try:
        kinds, jobs, fences, nth_kinds, *numbers = json.loads(text)
        known = [tuple(map(_word, kind)) for kind in kinds]
        rows = zip(map(_word, jobs), map(_word, fences), [known[nth] for nth in nth_kinds], *numbers, strict=True)
        return [_checked(row) for row in rows]
    except (TypeError, IndexError, RecursionError) as exc:
        raise ValueError(f"it is no page of claims: {exc}") from None


def _checked(row: tuple[Any, ...]) -> tuple[ClaimRow, bool]:
    job, fence, (type_, lane, outcome), enqueued, arrived, *times, brought_by, release, asked = row
    started, ended, freed = (None if time is None else _number(time) for time in times)
    since, numbers = (_number(enqueued), _number(arrived)), (_number(brought_by), _number(release))
    return (job, fence, (type_, lane, outcome), *since, started, ended, freed, *numbers), bool(asked)


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is expected, got: {value!r:.80}")
    return sys.intern(value)


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"a whole number is expected, got: {value!r:.80}")
    return value
