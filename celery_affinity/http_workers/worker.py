"""One life of a worker over HTTP, from its join to its leave or its death: its row in Redis, and its secret.

Redis has a digest of the secret, and no process keeps either. A worker that was taken for dead joins anew, with another
id: what it still runs is another's by then.

The claims of a worker over HTTP, as the server has them: read anew for each request.
"""

import hashlib
import hmac
import json
import re
import secrets
import uuid
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from celery import Celery

from ..errors import OptionError, refuse
from ..options.type_names import ACCEPTED, is_type_name
from ..policy import placement
from ..publishing.app_config import settings_of
from ..publishing.message import Message
from ..publishing.message import decode_message as read_message
from ..reports.job_rows import JobRow, parse_row
from ..scheduler import runtime_settings
from ..scheduler.messages import LONGEST_FENCE, Claim, ClaimReport, JoinArguments
from ..scheduler.reader import Reader
from ..scheduler.scheduler import Scheduler
from ..schema import values as redis_values
from ..schema.constants import FORCE, LONGEST_ID
from ..schema.untrusted import describe_shape
from ..schema.values import decode_number, decode_text, encode_part, log_and_drop_untrusted
from ..settings.cohorts import DEFAULT
from ..settings.table import Settings
from ..settings.wire import shared_settings

#: Largest number of types, and of slots, of one worker; and of characters of its name.
MOST_TYPES, MOST_SLOTS, LONGEST_NAME = 100, 1000, 255

#: Time, s, for which a worker that says nothing is known by its id: far longer than the silence that makes it dead.
KEPT_S = 86_400

_ID = re.compile(r"[0-9a-f]{32}")


class UnknownWorkerError(Exception):
    """Nobody knows the worker: it never joined, has left, or was taken for dead."""


class WrongSecretError(Exception):
    """The secret is not that of the worker."""


@dataclass(frozen=True)
class HttpWorker:
    """One life of a worker. *digest*: of its secret. *priority*, *stops*: see `join`."""

    id: str
    digest: str
    name: str
    types: tuple[str, ...]
    slots: int
    priority: int = 0
    stops: bool = False

    def check(self, secret: str) -> None:
        """Raise WrongSecretError for the secret of another worker."""
        if not hmac.compare_digest(self.digest, _digest(secret)):
            raise WrongSecretError("the secret is not that of this worker")


@dataclass(frozen=True)
class JoinedWorker:
    """A worker that has joined: its *id*, and the *secret* that its requests carry.

    *heartbeat_s*: how often it is to send a heartbeat. *timeout_s*: after so long a silence it is taken for dead.
    *namesake*: another live worker has its name.
    """

    id: str
    secret: str
    heartbeat_s: float
    timeout_s: float
    namesake: bool


def join_worker(
    scheduler: Scheduler,
    app: Celery,
    name: str,
    types: Sequence[str],
    slots: int,
    priority: int = 0,
    stops: bool = False,
) -> JoinedWorker:
    """Enter a worker, one more each time. *priority*: among equally specialised workers (``affinity_placement``).

    *stops*: whether it stops jobs when it is asked to, for a tenant below its minimum. Raises OptionError.
    """
    settings = settings_of(app)
    _check(settings, name, types, slots, priority)
    secret = secrets.token_urlsafe(24)
    new = HttpWorker(uuid.uuid4().hex, _digest(secret), name, tuple(dict.fromkeys(types)), slots, priority, stops)
    # First: a join that fails leaves a row that expires, and no worker that nobody can speak for.
    scheduler.client.set(_key(scheduler, new.id), json.dumps(asdict(new)), ex=KEPT_S)
    joined = scheduler.join(joining_of(app, new), shared_settings(settings))
    in_force = {each.name: each.value for each in runtime_settings.read_settings(scheduler, settings)}
    timeout_s = float(str(in_force["worker_timeout"]))
    return JoinedWorker(new.id, secret, settings.heartbeat_interval, timeout_s, joined.namesake is not None)


def joining_of(app: Celery, worker: HttpWorker, withdrawn: Collection[str] = ()) -> JoinArguments:
    """Return the words in which a worker joins, or comes back. *withdrawn*: types that it will serve again soon."""
    types = [each for each in worker.types if each not in withdrawn]
    return JoinArguments(
        worker.id,
        worker.name,
        types,
        worker.slots,
        app=app.main or "",
        withdrawn=sorted(withdrawn),
        stops=FORCE if worker.stops else "",
        priority=worker.priority,
    )


def find_worker(scheduler: Scheduler, worker: str) -> HttpWorker:
    """Return a worker by its id. Raises UnknownWorkerError."""
    found = None
    if _ID.fullmatch(worker):
        key = _key(scheduler, worker)
        with scheduler.client.pipeline(transaction=False) as pipe:
            found, _ = pipe.get(key).expire(key, KEPT_S).execute()
    if found is None:
        raise unknown_worker_error(worker)
    row = json.loads(found)
    return HttpWorker(**{**row, "types": tuple(row["types"])})


def leave_worker(scheduler: Scheduler, worker: HttpWorker) -> int:
    """Take a worker out. Return how many jobs it still held, which are pending again."""
    returned = scheduler.leave(worker.id)
    forget_worker(scheduler, worker)
    return returned


def forget_worker(scheduler: Scheduler, worker: HttpWorker) -> None:
    """Forget a worker of which the fleet knows nothing any more."""
    scheduler.client.unlink(_key(scheduler, worker.id), scheduler.keys.key("left_to_celery", worker.id))


def unknown_worker_error(worker: str) -> UnknownWorkerError:
    """Return the error for a worker that is not known."""
    return UnknownWorkerError(
        f"no live worker has the id {worker[:100]!r}: it has left, or was silent too long; join again"
    )


def is_http_worker(scheduler: Scheduler, name: str) -> bool:
    """Return whether the live worker that has this node name joined so."""
    known = scheduler.client.hget(scheduler.keys.key("names"), redis_values.encode_part(name))
    return known is not None and bool(http_workers_among(scheduler.reader, [decode_text(known)]))


def http_workers_among(reader: Reader, workers: Sequence[str]) -> set[str]:
    """Return those of *workers* (ids) that work over HTTP."""
    found = reader.ask([("exists", reader.key("remote_worker", each)) for each in workers])
    return {each for each, is_one in zip(workers, found, strict=True) if is_one}


def _check(settings: Settings, name: str, types: Sequence[str], slots: int, priority: int) -> None:
    if not (0 < len(name) <= LONGEST_NAME and name.isprintable() and name == name.strip()):
        raise refuse(
            "name", f"a text of 1 to {LONGEST_NAME} printable characters, without blanks at its ends", name[:300]
        )
    if not 1 <= slots <= MOST_SLOTS:
        raise refuse("slots", f"a whole number from 1 to {MOST_SLOTS:,}", slots)
    if (accepted := placement.check_worker_priority(priority)) is not None:
        raise refuse("priority", accepted, priority)
    if not 1 <= len(types) <= MOST_TYPES:
        raise OptionError(f"types must be a list of 1 to {MOST_TYPES} types, got: {len(types):,}")
    for each in types:
        if not is_type_name(each):
            raise refuse("types", f"each {ACCEPTED}", each[:300])
        if not settings.schedules(each):
            raise refuse("types", "queues that are scheduled (affinity_queues)", each)
        if settings.cohort_of(each) != DEFAULT:
            raise refuse("types", f"of cohort {DEFAULT!r}, which alone has workers over HTTP (affinity_cohorts)", each)


def _key(scheduler: Scheduler, worker: str) -> str:
    return scheduler.keys.key("remote_worker", worker)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


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
class InboxBatch:
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
            log_and_drop_untrusted("the inbox", item, exc)


def claims_of_worker(reader: Reader, job_ids: Sequence[str]) -> list[RemoteClaim]:
    """Return the rows of jobs, in their order; the row of an unknown job has the state ""."""
    rows = reader.ask([("hmget", reader.key("job", job_id), list(_FIELDS)) for job_id in job_ids])
    found = []
    for job_id, row in zip(job_ids, rows, strict=True):
        raw = {name: value for name, value in zip(_FIELDS, row, strict=True) if value is not None}
        expires = decode_text(raw.get("expires", b""))
        found.append(
            RemoteClaim(
                parse_row(job_id, raw),
                int(expires) if expires.isdecimal() and len(expires) <= LONGEST_FENCE else None,
                tuple(decode_text(raw.get("stamps", b"")).split()),
                decode_text(raw.get("primary", b"")),
                "moved" in raw,
            )
        )
    return found


def claim_of_job(reader: Reader, job_id: str, fence: int) -> RemoteClaim:
    """Return the job that a worker holds with this fencing number. Raises StaleClaimError."""
    its = None
    if len(job_id) <= LONGEST_ID:
        (its,) = claims_of_worker(reader, [job_id])
    if its is None or its.row.state != "claimed" or its.row.fence != str(fence):
        raise is_stale(job_id, fence)
    return its


def is_stale(job_id: str, fence: int | str) -> StaleClaimError:
    return StaleClaimError(
        f"fence {fence} of job {job_id[:300]} is not that of a claim: the job has ended, or is another's by now"
    )


def take_inbox(scheduler: Scheduler, worker: str, holds: Collection[int] | None) -> InboxBatch:
    """Read the inbox of *worker*. *holds*: numbers of the claims that it has; what it lacks comes again. None: all."""
    key = scheduler.keys.key
    with scheduler.client.pipeline() as pipe:  # a claim that is in neither reply has come to no one
        pipe.hgetall(key("claims", worker))
        pipe.rpop(key("inbox", worker), MOST_AT_ONCE)
        pipe.llen(key("inbox", worker))
        claims, items, left = pipe.execute()
    came = InboxBatch()
    for item in items or ():
        came.add(item)
    if holds is not None and not left:
        fresh = {(each.job_id, each.fence) for each in came.claims}
        numbers = [(decode_text(job_id), decode_text(fence)) for job_id, fence in claims.items()]
        lost = [each for each in numbers if each not in fresh and decode_number(each[1]) not in holds]
        came.claims += _again(scheduler.reader, lost[: MOST_AT_ONCE - len(came.claims)])
    return came


def _again(reader: Reader, numbers: Sequence[tuple[str, str]]) -> list[Claim]:
    """Return claims whose reply was lost, as the inbox had them (``claims.payload_again``)."""
    found = []
    for its in claims_of_worker(reader, [job_id for job_id, _ in numbers]):
        row = its.row
        if row.state == "claimed" and its.number in numbers:
            urgency = (row.lane.on_demand, row.lane.priority) if its.is_moved else None
            message = its.message(reader)
            facts = (*its.number, row.type, row.deliveries, row.enqueued_us)
            claim = Claim(*facts, message, its.expires_us, urgency, requeues=row.requeues)
            found.append(claim)
    return found


def take_control_messages(scheduler: Scheduler, worker: str) -> list[list[str]]:
    """Take the signs out of the inbox of *worker*, in words, and leave its jobs there."""
    inbox = scheduler.keys.key("inbox", worker)
    if not scheduler.client.llen(inbox):
        return []
    came = InboxBatch()
    for item in scheduler.client.lrange(inbox, -_MOST_SIGNS, -1):
        if item.startswith(b"\n") and scheduler.client.lrem(inbox, -1, item):
            came.add(item)
    return came.signs


def all_claims(scheduler: Scheduler, worker: str, starting: str = "") -> list[ClaimReport]:
    """Return all claims of *worker*, for a sync that compares nothing. *starting*: the job that starts now."""
    claims = scheduler.client.hgetall(scheduler.keys.key("claims", worker))
    numbers = [(decode_text(job_id), decode_text(fence)) for job_id, fence in claims.items()]
    return [ClaimReport(*each, 0 if each[0] == starting else -1) for each in numbers]


def revoke_control(reader: Reader, jobs: Sequence[RemoteClaim]) -> set[str]:
    """Return the ids of those *jobs* that somebody has revoked, as ``find_by.is_revoked`` says it."""
    names = [(each, "revoked", encode_part(each.row.task_id)) for each in jobs if each.row.task_id]
    names += [(each, "revoked_stamp", stamp) for each in jobs for stamp in each.stamps]
    values = reader.ask([("get", reader.key(kind, name)) for _, kind, name in names])
    return {
        each.row.job_id
        for (each, kind, _), value in zip(names, values, strict=True)
        if value is not None and (kind == "revoked" or decode_number(value) >= each.row.enqueued_us)
    }


def message_of_claim(raw: bytes) -> Message:
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
            raise ValueError(f"its header {name} must be a text, got: {describe_shape(headers.get(name))}")
    return message
