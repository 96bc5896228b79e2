"""Requests that are made once, however often they are repeated: a job and the key that says so, in one transaction.

A job is known for a minute after its end; its request, by a key of its own, for a day.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from redis.exceptions import WatchError

from ..schema.job_record import NewJob
from ..schema.values import decode_text
from . import runner
from .messages import PublishReply
from .runner import is_function_missing
from .scheduler import Scheduler

#: Largest number of attempts while the server loses its functions, or others make the same request.
_TRIES = 5


class MadeJob(NamedTuple):
    """A request that was made before. *digest*: of what was asked for."""

    digest: str
    task_id: str


def idempotency_key(scheduler: Scheduler, name: str) -> str:
    """Return the key of the request that its client calls *name*."""
    return scheduler.keys.key("idempotency", hashlib.blake2b(name.encode(), digest_size=15).hexdigest())


def made_jobs(scheduler: Scheduler, name: str) -> MadeJob | None:
    """Return the request *name*, if it was made before."""
    return _parsed(scheduler.client.get(idempotency_key(scheduler, name)))


def publish_once(
    scheduler: Scheduler, name: str, request: MadeJob, jobs: Sequence[NewJob], keep_s: float
) -> MadeJob | None:
    """Publish *jobs*, and keep *request* for *keep_s* seconds; None. Both, or neither if it was made before: Made.

    Raises OptionError if a job is refused; then the request was not made.
    """
    key = idempotency_key(scheduler, name)
    for _ in range(_TRIES):
        with scheduler.client.pipeline() as pipe:
            pipe.watch(key)
            before = _parsed(pipe.get(key))
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
        failed = next((each for each in replies if isinstance(each, Exception)), None)
        if failed is None:
            try:
                _check(scheduler.published(replies), jobs)
            except Exception:
                scheduler.client.unlink(key)
                raise
            return None
        scheduler.client.unlink(key)
        if not is_function_missing(failed):
            raise failed
        scheduler.load()
    raise WatchError(f"other requests with the Idempotency-Key {name!r} are under way")


def _check(published: Sequence[PublishReply], jobs: Sequence[NewJob]) -> None:
    for each, job in zip(published, jobs, strict=True):
        each.check(job)


def _parsed(value: bytes | None) -> MadeJob | None:
    digest, _, task_id = decode_text(value).partition(" ")
    return MadeJob(digest, task_id) if value is not None else None
