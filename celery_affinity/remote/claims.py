"""The claims of a worker over HTTP, as the server has them: read anew for each request."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..client.envelope import read as read_message
from ..client.stamp import Message
from ..observe.job_row import JobRow, parsed
from ..rules.encoding import encode
from ..rules.protocol import LONGEST_ID
from ..rules.rows import number_of, text_of
from ..rules.untrusted import shape_of
from ..server.arguments import ClaimReport
from ..server.reader import Reader
from ..server.received import drop
from ..server.replies import LONGEST_FENCE, Claim
from ..server.scheduler import Scheduler

#: Jobs that one reply hands out, at most: the others come with the next one.
MOST_AT_ONCE = 10

#: Signs in an inbox that are looked through for a heartbeat, at most.
_MOST_SIGNS = 100

#: Field of a job's row -> whether `JobRow` has it, too.
_FIELDS = (
    *("state", "worker", "fence", "type", "task", "name", "acked", "started", "claimed", "enqueued", "lane"),
    *("deliveries", "requeues", "rules", "expires", "stamps", "primary", "moved"),
)


class StaleClaimError(Exception):
    """The claim is its worker's no more."""


class RemoteClaim(NamedTuple):
    """A job that a worker holds. *stamps*: by which it can be revoked. *primary*: of a batch, the call that is run."""

    row: JobRow
    expires_us: int | None
    stamps: tuple[str, ...]
    primary: str
    is_moved: bool

    @property
    def number(self) -> tuple[str, str]:
        return self.row.job_id, self.row.fence

    def message(self, reader: Reader) -> bytes:
        """Return the message that is run, as it waited in Redis; b"" if it is gone."""
        return reader.message_of(self.primary or self.row.job_id)


@dataclass
class Came:
    """What an inbox had: *claims*, and *signs*, each in words."""

    claims: list[Claim] = field(default_factory=list)
    signs: list[list[str]] = field(default_factory=list)

    def add(self, item: bytes) -> None:
        """Read an item of an inbox. One that nobody can read is logged and dropped: a heartbeat gives its job back."""
        try:
            if item.startswith(b"\n"):
                self.signs.append(item.decode().split())
            else:
                self.claims.append(Claim.parse(item))
        except ValueError as exc:
            drop("the inbox", item, exc)


def held(reader: Reader, job_ids: Sequence[str]) -> list[RemoteClaim]:
    """Return the rows of jobs, in their order; the row of an unknown job has the state ""."""
    rows = reader.ask([("hmget", reader.key("job", job_id), list(_FIELDS)) for job_id in job_ids])
    found = []
    for job_id, row in zip(job_ids, rows, strict=True):
        raw = {name: value for name, value in zip(_FIELDS, row, strict=True) if value is not None}
        expires = text_of(raw.get("expires", b""))
        found.append(
            RemoteClaim(
                parsed(job_id, raw),
                int(expires) if expires.isdecimal() and len(expires) <= LONGEST_FENCE else None,
                tuple(text_of(raw.get("stamps", b"")).split()),
                text_of(raw.get("primary", b"")),
                "moved" in raw,
            )
        )
    return found


def claim_of(reader: Reader, job_id: str, fence: int) -> RemoteClaim:
    """Return the job that a worker holds with this fencing number. Raises StaleClaimError."""
    its = None
    if len(job_id) <= LONGEST_ID:
        (its,) = held(reader, [job_id])
    if its is None or its.row.state != "claimed" or its.row.fence != str(fence):
        raise stale(job_id, fence)
    return its


def stale(job_id: str, fence: int | str) -> StaleClaimError:
    return StaleClaimError(
        f"fence {fence} of job {job_id[:300]} is not that of a claim: the job has ended, or is another's by now"
    )


def take(scheduler: Scheduler, worker: str, holds: Collection[int] | None) -> Came:
    """Read the inbox of *worker*. *holds*: numbers of the claims that it has; what it lacks comes again. None: all."""
    key = scheduler.keys.key
    with scheduler.client.pipeline() as pipe:  # a claim that is in neither reply has come to no one
        pipe.hgetall(key("claims", worker))
        pipe.rpop(key("inbox", worker), MOST_AT_ONCE)
        pipe.llen(key("inbox", worker))
        claims, items, left = pipe.execute()
    came = Came()
    for item in items or ():
        came.add(item)
    if holds is not None and not left:
        fresh = {(each.job_id, each.fence) for each in came.claims}
        numbers = [(text_of(job_id), text_of(fence)) for job_id, fence in claims.items()]
        lost = [each for each in numbers if each not in fresh and number_of(each[1]) not in holds]
        came.claims += _again(scheduler.reader, lost[: MOST_AT_ONCE - len(came.claims)])
    return came


def _again(reader: Reader, numbers: Sequence[tuple[str, str]]) -> list[Claim]:
    """Return claims whose reply was lost, as the inbox had them (``claims.payload_again``)."""
    found = []
    for its in held(reader, [job_id for job_id, _ in numbers]):
        row = its.row
        if row.state == "claimed" and its.number in numbers:
            urgency = (row.lane.on_demand, row.lane.priority) if its.is_moved else None
            message = its.message(reader)
            facts = (*its.number, row.type, row.deliveries, row.enqueued_us)
            claim = Claim(*facts, message, its.expires_us, urgency, requeues=row.requeues)
            found.append(claim)
    return found


def take_signs(scheduler: Scheduler, worker: str) -> list[list[str]]:
    """Take the signs out of the inbox of *worker*, in words, and leave its jobs there."""
    inbox = scheduler.keys.key("inbox", worker)
    if not scheduler.client.llen(inbox):
        return []
    came = Came()
    for item in scheduler.client.lrange(inbox, -_MOST_SIGNS, -1):
        if item.startswith(b"\n") and scheduler.client.lrem(inbox, -1, item):
            came.add(item)
    return came.signs


def all_of(scheduler: Scheduler, worker: str, starting: str = "") -> list[ClaimReport]:
    """Return all claims of *worker*, for a sync that compares nothing. *starting*: the job that starts now."""
    claims = scheduler.client.hgetall(scheduler.keys.key("claims", worker))
    numbers = [(text_of(job_id), text_of(fence)) for job_id, fence in claims.items()]
    return [ClaimReport(*each, 0 if each[0] == starting else -1) for each in numbers]


def revoked(reader: Reader, jobs: Sequence[RemoteClaim]) -> set[str]:
    """Return the ids of those *jobs* that somebody has revoked, as ``find_by.is_revoked`` says it."""
    names = [(each, "revoked", encode(each.row.task_id)) for each in jobs if each.row.task_id]
    names += [(each, "revoked_stamp", stamp) for each in jobs for stamp in each.stamps]
    values = reader.ask([("get", reader.key(kind, name)) for _, kind, name in names])
    return {
        each.row.job_id
        for (each, kind, _), value in zip(names, values, strict=True)
        if value is not None and (kind == "revoked" or number_of(value) >= each.row.enqueued_us)
    }


def message_in(raw: bytes) -> Message:
    """Return a message, whose task and id are texts. Raises ValueError for a text that is no such message."""
    try:
        message = read_message(raw)
    except ValueError as exc:
        raise ValueError(f"its message cannot be read: {exc}") from exc
    headers = message.get("headers")
    if not headers or not isinstance(message.get("properties"), dict) or "body" not in message:
        raise ValueError("its message cannot be read: it must have headers, properties and a body")
    for name in ("task", "id"):
        if not isinstance(headers.get(name), str):
            raise ValueError(f"its header {name} must be a text, got: {shape_of(headers.get(name))}")
    return message
