"""Jobs that only Celery's workers can run, of types that workers over HTTP serve as well: pickled ones, for example.

Such a job stays pending. The worker over HTTP that got it gives it back, and withdraws from its type, since the
job would come to the same worker again, until one of Celery's workers has the job, or none of them serves the type.
"""

from collections.abc import Sequence
from typing import NamedTuple

from celery import Celery

from ..client.of_app import settings_of
from ..rules.encoding import decode, encode, marked, unmarked
from ..rules.rows import text_of
from ..rules.shared_settings import shared
from ..server.reader import Reader
from ..server.replies import Claim
from ..server.scheduler import Scheduler
from . import claims
from .incarnation import KEPT_S, Incarnation, joining, remote_among

#: Workers that are looked at together for one that is Celery's.
_AT_ONCE = 200


class LeftJob(NamedTuple):
    """A pending job that workers over HTTP leave to Celery's. *why*: what it has that they cannot run, in words."""

    job_id: str
    type: str
    why: str


def leave(scheduler: Scheduler, app: Celery, worker: Incarnation, claim: Claim, why: str) -> bool:
    """Leave a job that *worker* holds to Celery's workers. Return False, without a change, if none serves its type."""
    if not _is_served(scheduler.reader, claim.type):
        return False
    key = _key(scheduler.reader, worker.id)
    with scheduler.client.pipeline(transaction=False) as pipe:
        pipe.hset(key, claim.job_id, f"{encode(claim.type)} {why}").expire(key, KEPT_S).execute()
    _serve(scheduler, app, worker, {each.type for each in left_by(scheduler.reader, [worker.id])} | {claim.type})
    scheduler.requeue(worker.id, [(claim.job_id, claim.fence)], counted=False)
    return True


def take_up(scheduler: Scheduler, app: Celery, worker: Incarnation) -> bool:
    """Have a worker serve those types again whose jobs it need not leave to anybody any more.

    Return whether there are types that it still leaves to Celery's workers.
    """
    reader = scheduler.reader
    withdrawn = {type_ for type_ in map(text_of, _types(reader, worker)) if type_ != unmarked(type_)}
    if not withdrawn:
        return False
    left = left_by(reader, [worker.id])
    served = {type_ for type_ in {each.type for each in left} if _is_served(reader, type_)}
    pending = _pending(reader, left)
    over = [each.job_id for each in left if each.type not in served or each.job_id not in pending]
    if over:
        scheduler.client.hdel(_key(reader, worker.id), *over)
    types = {each.type for each in left if each.job_id not in over}
    if {marked(encode(type_)) for type_ in types} != withdrawn:
        _serve(scheduler, app, worker, types)
    return bool(types)


def left_by(reader: Reader, workers: Sequence[str]) -> list[LeftJob]:
    """Return the jobs that *workers* (ids) have left to Celery's; some may have a slot by now, or have ended."""
    found = []
    for row in reader.ask([("hgetall", _key(reader, each)) for each in workers]):
        for job_id, said in row.items():
            type_, _, why = text_of(said).partition(" ")
            found.append(LeftJob(text_of(job_id), decode(type_), why))
    return found


def still_left(reader: Reader, workers: Sequence[str]) -> list[LeftJob]:
    """Return the jobs that *workers* (ids) have left to Celery's, and that are pending: each once."""
    left = left_by(reader, workers)
    pending = _pending(reader, left)
    return list({each.job_id: each for each in left if each.job_id in pending}.values())


def _serve(scheduler: Scheduler, app: Celery, worker: Incarnation, withdrawn: set[str]) -> None:
    """Have a worker serve its types but *withdrawn*. It keeps its jobs."""
    scheduler.join(joining(app, worker, withdrawn), shared(settings_of(app)))


def _pending(reader: Reader, left: Sequence[LeftJob]) -> set[str]:
    """Return the ids of those jobs that are pending, and of the type that they were left in."""
    rows = [each.row for each in claims.held(reader, [each.job_id for each in left])]
    return {row.job_id for row, its in zip(rows, left, strict=True) if (row.state, row.type) == ("pending", its.type)}


def _types(reader: Reader, worker: Incarnation) -> list[bytes]:
    return (reader.ask_one("hget", reader.key("worker", worker.id), "types") or b"").split()


def _is_served(reader: Reader, type_: str) -> bool:
    """Return whether a live worker of Celery's serves a type."""
    word = encode(type_)
    profiles = {name for name, types in reader.large_hash("profiles").items() if word in map(unmarked, types.split())}
    workers = list(reader.large_zset("heartbeats"))
    for first in range(0, len(workers), _AT_ONCE):
        some = workers[first : first + _AT_ONCE]
        its = reader.ask([("hget", reader.key("worker", each), "profile") for each in some])
        serving = [each for each, profile in zip(some, its, strict=True) if text_of(profile) in profiles]
        if set(serving) - remote_among(reader, serving):
            return True
    return False


def _key(reader: Reader, worker: str) -> str:
    return reader.key("left_to_celery", worker)
