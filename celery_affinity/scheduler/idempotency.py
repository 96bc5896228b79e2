"""Idempotent requests: a job and the key of its request are written in one transaction.

A job's hash is retained for a minute after its end; the key of its request is retained for a day.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from redis.exceptions import WatchError

from ..schema.job_record import NewJob
from ..schema.values import decode_text
from . import runner
from .runner import is_function_missing
from .scheduler import Scheduler

#: Maximum number of attempts while the server loses its functions, or other clients make the same request.
_MAX_ATTEMPTS = 5


class MadeJob(NamedTuple):
    """An earlier request. *digest*: the digest of its contents."""

    digest: str
    task_id: str


def idempotency_key(scheduler: Scheduler, name: str) -> str:
    """Return the Redis key of the request that its client named *name*."""
    return scheduler.keys.key("idempotency", hashlib.blake2b(name.encode(), digest_size=15).hexdigest())


def made_jobs(scheduler: Scheduler, name: str) -> MadeJob | None:
    """Return the request *name* if it was made before."""
    return _parse_request(scheduler.client.get(idempotency_key(scheduler, name)))


def publish_once(
    scheduler: Scheduler, name: str, request: MadeJob, jobs: Sequence[NewJob], keep_s: float
) -> MadeJob | None:
    """Publish *jobs* and store *request* for *keep_s* seconds, atomically. Return the earlier request, if any, or None.

    Raises OptionError if a job is rejected; then the request was not made.
    """
    key = idempotency_key(scheduler, name)
    for _ in range(_MAX_ATTEMPTS):
        with scheduler.client.pipeline() as pipe:
            pipe.watch(key)
            before = _parse_request(pipe.get(key))
            if before is not None:
                return before
            pipe.multi()
            for call in runner.publish_invocations(jobs):
                pipe.execute_command(*scheduler.command(call))
            pipe.set(key, f"{request.digest} {request.task_id}", px=round(keep_s * 1000))
            try:
                *replies, _ = pipe.execute(raise_on_error=False)
            except WatchError:
                continue
        failed = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if failed is None:
            try:
                for outcome, job in zip(scheduler.published(replies), jobs, strict=True):
                    outcome.check(job)
            except Exception:
                scheduler.client.unlink(key)
                raise
            return None
        scheduler.client.unlink(key)
        if not is_function_missing(failed):
            raise failed
        scheduler.load()
    raise WatchError(f"other requests with the Idempotency-Key {name!r} are under way")


def _parse_request(value: bytes | None) -> MadeJob | None:
    digest, _, task_id = decode_text(value).partition(" ")
    return MadeJob(digest, task_id) if value is not None else None
