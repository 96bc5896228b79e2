"""One life of a worker over HTTP, from its join to its leave or its death: its row in Redis, and its secret.

Redis has a digest of the secret, and no process keeps either. A worker that was taken for dead joins anew, with another
id: what it still runs is another's by then.
"""

import hashlib
import hmac
import json
import re
import secrets
import uuid
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

from celery import Celery

from ..client.of_app import settings_of
from ..errors import OptionError, refuse
from ..rules import encoding, worker_priority
from ..rules.cohorts import DEFAULT
from ..rules.protocol import FORCE
from ..rules.rows import text_of
from ..rules.settings import Settings
from ..rules.shared_settings import shared
from ..rules.type_name import ACCEPTED, is_type
from ..server import runtime_settings
from ..server.arguments import Joining
from ..server.reader import Reader
from ..server.scheduler import Scheduler

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
class Incarnation:
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


def join(
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
    new = Incarnation(uuid.uuid4().hex, _digest(secret), name, tuple(dict.fromkeys(types)), slots, priority, stops)
    # First: a join that fails leaves a row that expires, and no worker that nobody can speak for.
    scheduler.client.set(_key(scheduler, new.id), json.dumps(asdict(new)), ex=KEPT_S)
    joined = scheduler.join(joining(app, new), shared(settings))
    in_force = {each.name: each.value for each in runtime_settings.read(scheduler, settings)}
    timeout_s = float(str(in_force["worker_timeout"]))
    return JoinedWorker(new.id, secret, settings.heartbeat_interval, timeout_s, joined.namesake is not None)


def joining(app: Celery, worker: Incarnation, withdrawn: Collection[str] = ()) -> Joining:
    """Return the words in which a worker joins, or comes back. *withdrawn*: types that it will serve again soon."""
    types = [each for each in worker.types if each not in withdrawn]
    return Joining(
        worker.id,
        worker.name,
        types,
        worker.slots,
        app=app.main or "",
        withdrawn=sorted(withdrawn),
        stops=FORCE if worker.stops else "",
        priority=worker.priority,
    )


def find(scheduler: Scheduler, worker: str) -> Incarnation:
    """Return a worker by its id. Raises UnknownWorkerError."""
    found = None
    if _ID.fullmatch(worker):
        key = _key(scheduler, worker)
        with scheduler.client.pipeline(transaction=False) as pipe:
            found, _ = pipe.get(key).expire(key, KEPT_S).execute()
    if found is None:
        raise unknown(worker)
    row = json.loads(found)
    return Incarnation(**{**row, "types": tuple(row["types"])})


def leave(scheduler: Scheduler, worker: Incarnation) -> int:
    """Take a worker out. Return how many jobs it still held, which are pending again."""
    returned = scheduler.leave(worker.id)
    forget(scheduler, worker)
    return returned


def forget(scheduler: Scheduler, worker: Incarnation) -> None:
    """Forget a worker of which the fleet knows nothing any more."""
    scheduler.client.unlink(_key(scheduler, worker.id), scheduler.keys.key("left_to_celery", worker.id))


def unknown(worker: str) -> UnknownWorkerError:
    """Return the error for a worker that is not known."""
    return UnknownWorkerError(
        f"no live worker has the id {worker[:100]!r}: it has left, or was silent too long; join again"
    )


def is_one(scheduler: Scheduler, name: str) -> bool:
    """Return whether the live worker that has this node name joined so."""
    known = scheduler.client.hget(scheduler.keys.key("names"), encoding.encode(name))
    return known is not None and bool(remote_among(scheduler.reader, [text_of(known)]))


def remote_among(reader: Reader, workers: Sequence[str]) -> set[str]:
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
    if (accepted := worker_priority.check(priority)) is not None:
        raise refuse("priority", accepted, priority)
    if not 1 <= len(types) <= MOST_TYPES:
        raise OptionError(f"types must be a list of 1 to {MOST_TYPES} types, got: {len(types):,}")
    for each in types:
        if not is_type(each):
            raise refuse("types", f"each {ACCEPTED}", each[:300])
        if not settings.schedules(each):
            raise refuse("types", "queues that are scheduled (affinity_queues)", each)
        if settings.cohort_of(each) != DEFAULT:
            raise refuse("types", f"of cohort {DEFAULT!r}, which alone has workers over HTTP (affinity_cohorts)", each)


def _key(scheduler: Scheduler, worker: str) -> str:
    return scheduler.keys.key("remote_worker", worker)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
