"""A worker over HTTP, from its join to its leave or death: its hash in Redis, its secret and its claims.

Redis stores only a digest of the secret. A worker that was declared dead joins again with another id, because other
workers may have its jobs. Claims are read from the server in each request.
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
from ..scheduler.messages import MAX_FENCE_LENGTH, Claim, ClaimReport, JoinArguments
from ..scheduler.reader import Reader
from ..scheduler.scheduler import Scheduler
from ..schema import values as redis_values
from ..schema.constants import FORCE, MAX_ID_LENGTH
from ..schema.untrusted import describe_shape
from ..schema.values import decode_number, decode_text, encode_part, log_and_drop_untrusted
from ..settings.cohorts import DEFAULT
from ..settings.table import Settings
from ..settings.wire import shared_settings

#: Maximum number of types per worker, of slots per worker, and of characters in its name.
MAX_TYPES, MAX_SLOTS, MAX_NAME_LENGTH = 100, 1000, 255
#: Seconds for which a silent worker's id is kept: far longer than the silence until a worker is declared dead.
KEPT_S = 86_400

_ID = re.compile(r"[0-9a-f]{32}")


class UnknownWorkerError(Exception):
    """The worker is unknown: it never joined, has left, or was declared dead."""


class WrongSecretError(Exception):
    """The secret does not match the worker."""


@dataclass(frozen=True)
class HttpWorker:
    """One life of a worker, from a join on. *digest*: of its secret. *priority*, *stops*: see `join_worker`."""

    id: str
    digest: str
    name: str
    types: tuple[str, ...]
    slots: int
    priority: int = 0
    stops: bool = False


@dataclass(frozen=True)
class JoinedWorker:
    """A worker that has joined: its *id*, and the *secret* that its requests must contain.

    It must send a heartbeat every *heartbeat_s* seconds, and is declared dead after *timeout_s* seconds of silence.
    *namesake* is true if another live worker has the same name.

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
    """Register a new worker. *priority*: among equally specialised workers (``affinity_placement``).

    *stops*: True if it stops jobs on request, for a tenant below its minimum. Raises OptionError.
    """
    settings = settings_of(app)
    _check_options(settings, name, types, slots, priority)
    secret = secrets.token_urlsafe(24)
    new = HttpWorker(uuid.uuid4().hex, _digest(secret), name, tuple(dict.fromkeys(types)), slots, priority, stops)
    # First: a failed join leaves only a hash that expires, and not a worker without a known secret.
    scheduler.client.set(_redis_key(scheduler, new.id), json.dumps(asdict(new)), ex=KEPT_S)
    joined = scheduler.join(joining_of(app, new), shared_settings(settings))
    in_force = {setting.name: setting.value for setting in runtime_settings.read_settings(scheduler, settings)}
    timeout_s = float(str(in_force["worker_timeout"]))
    return JoinedWorker(new.id, secret, settings.heartbeat_interval, timeout_s, joined.namesake is not None)


def joining_of(app: Celery, worker: HttpWorker, withdrawn: Collection[str] = ()) -> JoinArguments:
    """Return the arguments of a join or rejoin. *withdrawn*: types that the worker will serve again soon."""
    types = [type_ for type_ in worker.types if type_ not in withdrawn]
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


def find_worker(scheduler: Scheduler, worker: str, secret: str) -> HttpWorker:
    """Return a worker by its id. Raises UnknownWorkerError, or WrongSecretError if *secret* is not the worker's."""
    value = None
    if _ID.fullmatch(worker):
        key = _redis_key(scheduler, worker)
        with scheduler.client.pipeline(transaction=False) as pipe:
            value, _ = pipe.get(key).expire(key, KEPT_S).execute()
    if value is None:
        raise unknown_worker_error(worker)
    row = json.loads(value)
    if not hmac.compare_digest(row["digest"], _digest(secret)):
        raise WrongSecretError("the secret is not that of this worker")
    return HttpWorker(**{**row, "types": tuple(row["types"])})


def leave_worker(scheduler: Scheduler, worker: HttpWorker) -> int:
    """Remove a worker. Return the number of jobs that it still held, which are pending again."""
    returned = scheduler.leave(worker.id)
    forget_worker(scheduler, worker)
    return returned


def forget_worker(scheduler: Scheduler, worker: HttpWorker) -> None:
    """Delete the data of a worker that is no longer in the fleet."""
    scheduler.client.unlink(_redis_key(scheduler, worker.id), scheduler.keys.key("left_to_celery", worker.id))


def unknown_worker_error(worker: str) -> UnknownWorkerError:
    return UnknownWorkerError(
        f"no live worker has the id {worker[:100]!r}: it has left, or was silent too long; join again"
    )


def is_http_worker(scheduler: Scheduler, name: str) -> bool:
    """Return True if the live worker with this node name joined over HTTP."""
    worker_id = scheduler.client.hget(scheduler.keys.key("names"), redis_values.encode_part(name))
    return worker_id is not None and bool(http_workers_among(scheduler.reader, [decode_text(worker_id)]))


def http_workers_among(reader: Reader, workers: Sequence[str]) -> set[str]:
    """Return the subset of *workers* (ids) that work over HTTP."""
    replies = reader.ask([("exists", reader.key("remote_worker", worker)) for worker in workers])
    return {worker for worker, exists in zip(workers, replies, strict=True) if exists}


def _check_options(settings: Settings, name: str, types: Sequence[str], slots: int, priority: int) -> None:
    if not (0 < len(name) <= MAX_NAME_LENGTH and name.isprintable() and name == name.strip()):
        raise refuse(
            "name", f"a text of 1 to {MAX_NAME_LENGTH} printable characters, without blanks at its ends", name[:300]
        )
    if not 1 <= slots <= MAX_SLOTS:
        raise refuse("slots", f"a whole number from 1 to {MAX_SLOTS:,}", slots)
    if (accepted := placement.check_worker_priority(priority)) is not None:
        raise refuse("priority", accepted, priority)
    if not 1 <= len(types) <= MAX_TYPES:
        raise OptionError(f"types must be a list of 1 to {MAX_TYPES} types, got: {len(types):,}")
    for type_ in types:
        if not is_type_name(type_):
            raise refuse("types", f"each {ACCEPTED}", type_[:300])
        if not settings.schedules(type_):
            raise refuse("types", "queues that are scheduled (affinity_queues)", type_)
        if settings.cohort_of(type_) != DEFAULT:
            raise refuse("types", f"of cohort {DEFAULT!r}, which alone has workers over HTTP (affinity_cohorts)", type_)


def _redis_key(scheduler: Scheduler, worker: str) -> str:
    return scheduler.keys.key("remote_worker", worker)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


#: Maximum number of jobs in one reply; the next reply contains the others.
MAX_AT_ONCE = 10
#: Maximum number of control messages that a heartbeat reads from an inbox.
_MAX_CONTROL_MESSAGES = 100
#: Fields that are read from a job hash.
_FIELDS = (
    *("state", "worker", "fence", "type", "task", "name", "acked", "started", "claimed", "enqueued", "lane"),
    *("deliveries", "requeues", "rules", "expires", "stamps", "primary", "moved"),
)


class StaleClaimError(Exception):
    """The worker no longer has the claim."""


class RemoteClaim(NamedTuple):
    """A job that a worker holds. *stamps*: for revoking it. *primary*: the primary call of a batch."""

    row: JobRow
    expires_us: int | None
    stamps: tuple[str, ...]
    primary: str
    is_moved: bool

    @property
    def number(self) -> tuple[str, str]:
        return self.row.job_id, self.row.fence

    def message(self, reader: Reader) -> bytes:
        """Return the message of the run, as it waited in Redis, or b"" if it was deleted."""
        return reader.message_of(self.primary or self.row.job_id)


@dataclass
class InboxBatch:
    """The contents of an inbox: *claims*, and *signs* (control messages), each split at spaces."""

    claims: list[Claim] = field(default_factory=list)
    signs: list[list[str]] = field(default_factory=list)

    def add(self, item: bytes) -> None:
        """Read an item of an inbox. An unreadable item is logged and dropped: a heartbeat returns its job."""
        try:
            if item.startswith(b"\n"):
                self.signs.append(item.decode().split())
            else:
                self.claims.append(Claim.parse(item))
        except ValueError as exc:
            log_and_drop_untrusted("the inbox", item, exc)


def claims_of_worker(reader: Reader, job_ids: Sequence[str]) -> list[RemoteClaim]:
    """Return the claims of jobs, in their order; the hash of an unknown job has the state ""."""
    rows = reader.ask([("hmget", reader.key("job", job_id), list(_FIELDS)) for job_id in job_ids])
    claims = []
    for job_id, row in zip(job_ids, rows, strict=True):
        fields = {name: value for name, value in zip(_FIELDS, row, strict=True) if value is not None}
        expires = decode_text(fields.get("expires", b""))
        claims.append(
            RemoteClaim(
                parse_row(job_id, fields),
                int(expires) if expires.isdecimal() and len(expires) <= MAX_FENCE_LENGTH else None,
                tuple(decode_text(fields.get("stamps", b"")).split()),
                decode_text(fields.get("primary", b"")),
                "moved" in fields,
            )
        )
    return claims


def claim_of_job(reader: Reader, job_id: str, fence: int) -> RemoteClaim:
    """Return the job that a worker holds with this fencing token. Raises StaleClaimError."""
    claim = None
    if len(job_id) <= MAX_ID_LENGTH:
        (claim,) = claims_of_worker(reader, [job_id])
    if claim is None or claim.row.state != "claimed" or claim.row.fence != str(fence):
        raise is_stale(job_id, fence)
    return claim


def is_stale(job_id: str, fence: int | str) -> StaleClaimError:
    return StaleClaimError(
        f"fence {fence} of job {job_id[:300]} is not the fence of a claim: the job has ended, or another worker has it"
    )


def take_inbox(scheduler: Scheduler, worker: str, holds: Collection[int] | None) -> InboxBatch:
    """Read the inbox of *worker*. *holds*: tokens of its claims, so that missing claims are resent; None for all."""
    key = scheduler.keys.key
    with scheduler.client.pipeline() as pipe:  # atomic: a claim that is in neither reply has reached no worker
        pipe.hgetall(key("claims", worker))
        pipe.rpop(key("inbox", worker), MAX_AT_ONCE)
        pipe.llen(key("inbox", worker))
        claims, items, remaining = pipe.execute()
    batch = InboxBatch()
    for item in items or ():
        batch.add(item)
    if holds is not None and not remaining:
        received = {(claim.job_id, claim.fence) for claim in batch.claims}
        numbers = [(decode_text(job_id), decode_text(fence)) for job_id, fence in claims.items()]
        lost = [number for number in numbers if number not in received and decode_number(number[1]) not in holds]
        batch.claims += _payloads_again(scheduler.reader, lost[: MAX_AT_ONCE - len(batch.claims)])
    return batch


def _payloads_again(reader: Reader, numbers: Sequence[tuple[str, str]]) -> list[Claim]:
    """Return claims whose reply was lost, in the format of the inbox (``claims.payload_again``)."""
    claims = []
    for claim in claims_of_worker(reader, [job_id for job_id, _ in numbers]):
        row = claim.row
        if row.state == "claimed" and claim.number in numbers:
            urgency = (row.lane.on_demand, row.lane.priority) if claim.is_moved else None
            message = claim.message(reader)
            facts = (*claim.number, row.type, row.deliveries, row.enqueued_us)
            payload = Claim(*facts, message, claim.expires_us, urgency, requeues=row.requeues)
            claims.append(payload)
    return claims


def take_control_messages(scheduler: Scheduler, worker: str) -> list[list[str]]:
    """Remove the control messages from the inbox of *worker*, split at spaces. Its jobs stay there."""
    inbox = scheduler.keys.key("inbox", worker)
    if not scheduler.client.llen(inbox):
        return []
    batch = InboxBatch()
    for item in scheduler.client.lrange(inbox, -_MAX_CONTROL_MESSAGES, -1):
        if item.startswith(b"\n") and scheduler.client.lrem(inbox, -1, item):
            batch.add(item)
    return batch.signs


def all_claims(scheduler: Scheduler, worker: str, starting: str = "") -> list[ClaimReport]:
    """Return all claims of *worker*, for a sync without a comparison. *starting*: the job that starts now."""
    claims = scheduler.client.hgetall(scheduler.keys.key("claims", worker))
    numbers = [(decode_text(job_id), decode_text(fence)) for job_id, fence in claims.items()]
    return [ClaimReport(*number, 0 if number[0] == starting else -1) for number in numbers]


def revoke_control(reader: Reader, jobs: Sequence[RemoteClaim]) -> set[str]:
    """Return the ids of revoked *jobs*, by the rules of ``job_index.is_revoked`` in Lua."""
    names = [(job, "revoked", encode_part(job.row.task_id)) for job in jobs if job.row.task_id]
    names += [(job, "revoked_stamp", stamp) for job in jobs for stamp in job.stamps]
    values = reader.ask([("get", reader.key(kind, name)) for _, kind, name in names])
    return {
        job.row.job_id
        for (job, kind, _), value in zip(names, values, strict=True)
        if value is not None and (kind == "revoked" or decode_number(value) >= job.row.enqueued_us)
    }


def message_of_claim(raw: bytes) -> Message:
    """Return a message whose task and id are texts. Raises ValueError for an invalid message."""
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
