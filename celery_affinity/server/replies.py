"""Arguments and replies of the arrows of `Scheduler`."""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import OptionError
from ..rules import job_fields, keys
from ..rules.protocol import IS_REFUSED
from .scripts.assembling import Argument

logger = logging.getLogger(__name__)

#: Digits of the largest number that Redis counts to.
_LONGEST_FENCE = 19


class Claim(NamedTuple):
    """A job as its worker got it. The fencing number tells this delivery from every other one of the job.

    *expires_us*: when the job ends if it has not started, by the server's clock; None: never.
    """

    job_id: str
    fence: str
    type: str
    deliveries: int
    enqueued_us: int
    message: bytes
    expires_us: int | None = None

    @classmethod
    def parse(cls, payload: bytes) -> "Claim":
        """Return the claim in *payload*: a line of facts, then the message. Raises ValueError if it is none."""
        facts, _, message = payload.partition(b"\n")
        job_id, fence, type_, deliveries, enqueued, *expires = facts.decode().split(" ")
        if not (job_id and fence.isascii() and fence.isdigit() and len(fence) <= _LONGEST_FENCE and int(fence)):
            raise ValueError("it has no job id, or no fencing number")
        if len(expires) > 1:
            raise ValueError("it has more facts than there are")
        expires_us = int(expires[0]) if expires else None
        return cls(job_id, fence, keys.decode(type_), int(deliveries), int(enqueued), message, expires_us)


def parsed_claims(payloads: Iterable[bytes]) -> list[Claim]:
    """Return the claims in *payloads*. One that cannot be read counts as lost on its way, so a sync gives it back."""
    found = []
    for payload in payloads:
        try:
            found.append(Claim.parse(payload))
        except ValueError as exc:
            logger.error(
                "A job that the server gave cannot be read, it is given back: %s. It was %r", exc, payload[:200]
            )
    return found


class End(NamedTuple):
    """How a claimed job ended: *outcome* is a word of ``release.lua`` ("acked", "failed", ...), and why, if it says."""

    job_id: str
    fence: str
    outcome: str


@dataclass(frozen=True)
class Joining:
    """What a worker of *app* says of itself when it joins. *slots*: its concurrency.

    *other*: slots taken without a claim, less those that claims lend. *withdrawn*: types that it will serve again soon.
    """

    worker: str
    name: str
    types: Sequence[str]
    slots: int
    other: int = 0
    app: str = ""
    withdrawn: Sequence[str] = ()

    @property
    def encoded_types(self) -> list[str]:
        """The types of the profile. One that the worker has withdrawn from counts, which makes no specialist of it."""
        types = {*self.types, *map(keys.withdrawn, self.withdrawn)}
        return sorted(map(keys.encode, types))

    @property
    def profile(self) -> str:
        """A short name of the set of types, one for all workers that serve just these."""
        return hashlib.sha1(" ".join(self.encoded_types).encode(), usedforsecurity=False).hexdigest()[:16]


class Published(NamedTuple):
    """Whether a job was published. *fresh*: its id was not known. Not *served*: no live worker serves its type.

    *refused*: the field for which the server refused it; None if it did not.
    """

    fresh: bool
    served: bool
    refused: str | None = None

    @classmethod
    def parse(cls, state: int, served: Any) -> "Published":
        """Return what a script replies of one job. *served*: the name of the field, if the job was refused."""
        if state == IS_REFUSED:
            return cls(False, True, served.decode())
        return cls(bool(state), bool(served))

    def check(self, job: "Job") -> None:
        """Raise OptionError if *job* was refused."""
        if self.refused is not None:
            raise job_fields.refused(self.refused, job.arguments)


@dataclass(slots=True)  # not frozen: each publish makes one, and a frozen one takes three times as long to make
class Job:
    """A job to publish. *delay_us*: time until it is due. *expires_us*: time until it ends if it still waits.

    *stamps*: words by which it can be revoked, as `revokes.stamp` writes them. *readable*: False if only the message
    and the list that it was found in are known. Raises OptionError for a value that is no text, or none in UTF-8.
    """

    id: str
    type: str
    message: bytes | str
    on_demand: bool = False
    priority: int = 0
    delay_us: int = 0
    task_id: str = ""
    task_name: str = ""
    expires_us: int | None = None
    stamps: Sequence[str] = ()
    readable: bool = True
    arguments: tuple[Argument, ...] = field(init=False, repr=False)
    """Arguments of the scripts that make a job, in the order of `job_fields.FIELDS`: on_demand is their "mode"."""

    def __post_init__(self) -> None:
        try:
            self.arguments = (
                self.id,
                keys.encode(self.type),
                "demand" if self.on_demand else "queued",
                self.priority,
                self.delay_us,
                keys.encode(self.task_id),
                self.task_name,
                "" if self.expires_us is None else self.expires_us,
                " ".join(self.stamps),
                self.message,
            )
        except (TypeError, ValueError) as exc:
            said = (self.type, self.task_id, self.stamps)
            raise OptionError(f"type, task id and stamps of a job must be texts in UTF-8, got: {said!r}") from exc

    def checked(self) -> "Job":
        """Return the job. Raises OptionError if one of its fields is not accepted: the script would refuse it."""
        bad = job_fields.bad(self.arguments)
        if bad is not None:
            raise job_fields.refused(bad, self.arguments)
        return self


class Joined(NamedTuple):
    """The reply to a join. *namesake*: another live worker of that node name. *replaced*: settings that changed.

    *void_up_to*: highest fencing number of claims that are not the worker's, since it is new, or had been taken for
    dead; 0 for a worker that came back in time. *now_us*: the server's time.
    """

    namesake: str | None
    replaced: list[str]
    void_up_to: int
    now_us: int


class Running(NamedTuple):
    """A claim that its worker holds. *running_us*: since its task started, -1 if it has not."""

    job_id: str
    fence: str
    running_us: int


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


class Ticked(NamedTuple):
    """The reply to a tick. *next_due_s*: the time until a scheduled job is due; None if there is none.

    *untold*: whether there are ends to be told (`Scheduler.announce`). *lists*: those that hold messages.
    """

    next_due_s: float | None
    due: int
    recovered: int
    dead_workers: int
    untold: bool
    lists: list[str]


class Ending(NamedTuple):
    """A job that ended without a worker. *how*: "revoked", "expired", "lost" or "max_deliveries"; "" if nothing but
    the id can be read.

    *since_s*: the time since then. *for_anyone*: whether an app that does not know the task tells the end as well.
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
    def parse(cls, row: Sequence[Any]) -> "Ending":
        """Return what a row of `announce` says."""
        job_id, *facts = row
        try:
            how, type_, task_id, name, deliveries, since_us, for_anyone, message = facts
            return cls(
                job_id.decode(),
                how.decode(),
                keys.decode(type_.decode()),
                keys.decode(task_id.decode()),
                name.decode(),
                int(deliveries),
                int(since_us) / 1e6,
                bool(for_anyone),
                message,
            )
        except (ValueError, AttributeError, TypeError):  # AttributeError: there is no such field
            return cls(job_id.decode(errors="surrogateescape"), "")
