"""What `Scheduler` returns: the replies of the arrows, read."""

from collections.abc import Sequence
from typing import NamedTuple

from ..clock import SECOND_US
from ..errors import QueueFull
from ..log_limit import limited_logger
from ..rules import encoding, lanes, new_job
from ..rules.clock_step import ServerTime
from ..rules.new_job import NewJob
from ..rules.protocol import IS_FULL, IS_MERGED, IS_REFUSED, WAS_PREEMPTED, WAS_REQUEUED
from ..rules.rows import number_of, text_of
from .connections.kept import Reply

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
    def has_run(self) -> bool:
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
            urgency = mode == lanes.DEMAND, int(priority)
        expires_us = None if expires == "-" else int(expires)
        type_ = encoding.decode(type_)
        numbers = int(deliveries), int(enqueued)
        return cls(job_id, fence, type_, *numbers, message, expires_us, urgency, preemptions, requeues)


def parsed_claims(parts: Sequence[bytes]) -> list[Claim]:
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


class Published(NamedTuple):
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
    def parse(cls, state: int, served: Reply) -> "Published":
        """Return the outcome in an arrow's reply for one job.

        *served*: for a refused job, the name of the field; for one without room, type, jobs that wait, and its bound.
        """
        if state == IS_REFUSED:
            return cls(False, True, served.decode())
        if state == IS_FULL:
            type_, pending, most = served.decode().split(" ")
            return cls(False, True, full=QueueFull(encoding.decode(type_), int(pending), int(most)))
        return cls(bool(state), bool(served), merged=state == IS_MERGED)

    def check(self, job: NewJob) -> None:
        """Raise OptionError if *job* was refused; QueueFull if it found no room."""
        if self.full is not None:
            raise self.full
        if self.refused is not None:
            raise new_job.refused(self.refused, job.arguments)


class Joined(NamedTuple):
    """The reply to a join. *namesake*: another live worker of that node name. *replaced*: settings that changed.

    *void_up_to*: highest fencing number of claims that are not the worker's, since it is new, or had been taken for
    dead; 0 for a worker that came back in time. *now_us*: the server's time.
    """

    namesake: str | None
    replaced: list[str]
    void_up_to: int
    now_us: int


class Synced(NamedTuple):
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


class WasFound(NamedTuple):
    """The *state* of a job, or of the run that it was merged into; "": it is not known. *calls*: those of the run."""

    state: str
    calls: int

    @property
    def waits(self) -> bool:
        """Whether it waits for a slot, or for its time."""
        return self.state in ("pending", "scheduled")


class Moved(NamedTuple):
    """The outcome of `move`. *served*: whether a live worker serves the type. *found*: each job as it was before."""

    served: bool
    found: list[WasFound]


class Ticked(NamedTuple):
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
        name, due, task, signature = map(text_of, row)
        return cls(encoding.decode(name), due, task, signature)


class Caller(NamedTuple):
    """A call of a batch. *published_us*: when it was published, by the server's clock, a retry as its first try was.

    *message*: as kombu sent it, b"" if it is gone.
    """

    job_id: str
    task_id: str
    published_us: int
    message: bytes


class Callers(NamedTuple):
    """A page of the calls of a batch. *after*: the argument for the next page; None if there is none.

    *primary_us*: when the call was published whose message the worker has, as of a `Caller`; 0 if no worker has one.
    """

    after: int | None
    primary_us: int
    callers: list[Caller]

    @classmethod
    def parse(cls, after: int, primary: bytes, *found: bytes) -> "Callers":
        """Return the page in a reply of `callers`."""
        rows = zip(found[::4], found[1::4], found[2::4], found[3::4], strict=True)
        callers = [
            Caller(
                job_id.decode(errors="surrogateescape"), encoding.decode(text_of(task)), number_of(published), message
            )
            for job_id, task, published, message in rows
        ]
        return cls(None if after < 0 else after, number_of(primary), callers)


class Ending(NamedTuple):
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
    def parse(cls, row: Sequence[Reply]) -> "Ending":
        """Return the end in a row of `announce`."""
        job_id, *facts = row
        try:
            how, type_, task_id, name, deliveries, since_us, for_anyone, message = facts
            return cls(
                job_id.decode(),
                how.decode(),
                encoding.decode(type_.decode()),
                encoding.decode(task_id.decode()),
                name.decode(),
                int(deliveries),
                int(since_us) / SECOND_US,
                bool(for_anyone),
                message,
            )
        except (ValueError, AttributeError, TypeError):  # AttributeError: there is no such field
            return cls(job_id.decode(errors="surrogateescape"), "")
