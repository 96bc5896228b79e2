"""Hand out claimed jobs as JSON to workers over HTTP, and wait for the inboxes of such workers.

A job that only Celery's workers can run (such as a pickled one) is left to them where they serve its type. Any other
job that cannot be handed out becomes a dead letter, so no job is lost.
"""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from celery import Celery
from redis.exceptions import RedisError

from ..clock import SECOND_US
from ..log_limit import limited_logger
from ..options.keys import key_in, tenant_in
from ..policy.slot_math import NOTHING
from ..publishing.app_config import merge_of, settings_of
from ..publishing.message import PROPERTY, Message
from ..publishing.message_body import MAX_CHARACTERS, raw_body
from ..publishing.option_sources import rules_in
from ..results.reporter import MAX_SHOWN_LENGTH, printable_error
from ..scheduler.messages import Claim, EndArguments
from ..scheduler.reader import Reader
from ..scheduler.scheduler import Scheduler
from ..schema.job_record import is_batch, is_merged
from ..schema.untrusted import as_whole_number, bounded_text, describe_shape, loads, strict_json
from ..schema.values import decode_part, decode_text, encode_part, with_mark, without_mark
from ..settings.wire import shared_settings
from .worker import (
    KEPT_S,
    HttpWorker,
    claims_of_worker,
    http_workers_among,
    joining_of,
    message_of_claim,
    unknown_worker_error,
)

#: Number of workers that one read checks for a worker of Celery's.
_WORKERS_PER_READ = 200


class JobLeftToCelery(NamedTuple):
    """A pending job that workers over HTTP leave to Celery's workers. *why*: the reason, as text."""

    job_id: str
    type: str
    why: str


def leave_to_celery(scheduler: Scheduler, app: Celery, worker: HttpWorker, claim: Claim, why: str) -> bool:
    """Leave a job that *worker* holds to Celery's workers. Return False, without a change, if none serves its type.

    The job is returned and stays pending. The worker withdraws from its type, because it would get the job again, until
    a Celery worker has the job, or none of Celery's workers serves the type any longer.
    """
    if not _is_served_by_celery(scheduler.reader, claim.type):
        return False
    key = _redis_key(scheduler.reader, worker.id)
    with scheduler.client.pipeline(transaction=False) as pipe:
        pipe.hset(key, claim.job_id, f"{encode_part(claim.type)} {why}").expire(key, KEPT_S).execute()
    _rejoin(scheduler, app, worker, {job.type for job in jobs_left_by(scheduler.reader, [worker.id])} | {claim.type})
    scheduler.requeue(worker.id, [(claim.job_id, claim.fence)], counted=False)
    return True


def take_left_jobs(scheduler: Scheduler, app: Celery, worker: HttpWorker) -> bool:
    """Make a worker serve types again whose jobs it no longer leaves. Return True if it still leaves other jobs."""
    reader = scheduler.reader
    types_field: bytes = reader.ask_one("hget", reader.key("worker", worker.id), "types") or b""
    withdrawn = {type_ for type_ in map(decode_text, types_field.split()) if type_ != without_mark(type_)}
    if not withdrawn:
        return False
    jobs = jobs_left_by(reader, [worker.id])
    served = {type_ for type_ in {job.type for job in jobs} if _is_served_by_celery(reader, type_)}
    pending = _pending_ids(reader, jobs)
    finished = [job.job_id for job in jobs if job.type not in served or job.job_id not in pending]
    if finished:
        scheduler.client.hdel(_redis_key(reader, worker.id), *finished)
    types = {job.type for job in jobs if job.job_id not in finished}
    if {with_mark(encode_part(type_)) for type_ in types} != withdrawn:
        _rejoin(scheduler, app, worker, types)
    return bool(types)


def jobs_left_by(reader: Reader, workers: Sequence[str]) -> list[JobLeftToCelery]:
    """Return the jobs that *workers* (ids) have left to Celery's; some may already have a slot or have ended."""
    jobs = []
    for row in reader.ask([("hgetall", _redis_key(reader, worker)) for worker in workers]):
        for job_id, value in row.items():
            type_, _, why = decode_text(value).partition(" ")
            jobs.append(JobLeftToCelery(decode_text(job_id), decode_part(type_), why))
    return jobs


def still_left(reader: Reader, workers: Sequence[str]) -> list[JobLeftToCelery]:
    """Return the pending jobs that *workers* (ids) have left to Celery's, without duplicates."""
    jobs = jobs_left_by(reader, workers)
    pending = _pending_ids(reader, jobs)
    return list({job.job_id: job for job in jobs if job.job_id in pending}.values())


def _rejoin(scheduler: Scheduler, app: Celery, worker: HttpWorker, withdrawn: set[str]) -> None:
    """Make a worker serve its types except *withdrawn*. It keeps its jobs."""
    scheduler.join(joining_of(app, worker, withdrawn), shared_settings(settings_of(app)))


def _pending_ids(reader: Reader, jobs: Sequence[JobLeftToCelery]) -> set[str]:
    """Return the ids of the jobs that are pending, and still have the type that they had then."""
    rows = [claim.row for claim in claims_of_worker(reader, [claim.job_id for claim in jobs])]
    return {row.job_id for row, job in zip(rows, jobs, strict=True) if (row.state, row.type) == ("pending", job.type)}


def _is_served_by_celery(reader: Reader, type_: str) -> bool:
    """Return True if a live worker of Celery's serves the type."""
    token = encode_part(type_)
    profiles = {
        name for name, types in reader.large_hash("profiles").items() if token in map(without_mark, types.split())
    }
    workers = list(reader.large_zset("heartbeats"))
    for start in range(0, len(workers), _WORKERS_PER_READ):
        batch = workers[start : start + _WORKERS_PER_READ]
        names = reader.ask([("hget", reader.key("worker", worker), "profile") for worker in batch])
        serving = [worker for worker, profile in zip(batch, names, strict=True) if decode_text(profile) in profiles]
        if set(serving) - http_workers_among(reader, serving):
            return True
    return False


def _redis_key(reader: Reader, worker: str) -> str:
    return reader.key("left_to_celery", worker)


logger = limited_logger(__name__)
#: Sequence number of a `release` that is never repeated under the same number.
ONCE = 1


@dataclass(frozen=True)
class HandedOutJob:
    """A job for a worker. *id* and *fence* are its claim, which its start, end and heartbeats must name.

    *fence* is a fencing token that grows with each claim of the fleet. Storage that remembers the largest token of a
    *key* can refuse writes of an older claim. The job cannot start after *expires_in_s*. *acks_late* is true if the job
    runs again when the worker dies after the start. *args* and *kwargs* are as in the message.
    """

    id: str
    fence: int
    type: str
    task: str
    task_id: str
    args: list[Any]
    kwargs: dict[str, Any]
    deliveries: int
    requeues: int
    retries: int
    waited_s: float
    expires_in_s: float | None
    acks_late: bool
    key: str | None
    tenant: str | None


class LeftToCeleryError(ValueError):
    """A job is for Celery's workers: its arguments are not strict JSON, or its merging runs a Python function."""


def hand_out_jobs(scheduler: Scheduler, app: Celery, worker: HttpWorker, claims: Sequence[Claim]) -> list[HandedOutJob]:
    """Return *claims* of *worker* as jobs, except jobs that are left to Celery's workers or become dead letters."""
    if not claims:
        return []
    now_us = scheduler.reader.now_us()
    jobs = []
    for claim in claims:
        try:
            jobs.append(_as_handed_out(scheduler, app, claim, now_us))
        except ValueError as exc:
            reason = printable_error(str(exc))
            if isinstance(exc, LeftToCeleryError) and leave_to_celery(scheduler, app, worker, claim, reason):
                logger.warning("Job %s is for Celery's workers, and stays pending for them: %s", claim.job_id, reason)
            else:
                dead_letter(scheduler, worker.id, claim.job_id, claim.fence, reason)
    return jobs


def dead_letter(scheduler: Scheduler, worker: str, job_id: str, fence: str, reason: str) -> None:
    """Make a claimed job a dead letter."""
    logger.error("Job %s cannot be run by a worker over HTTP, and becomes a dead letter: %s", job_id, reason)
    end = EndArguments(job_id, fence, f"rejected {reason[:MAX_SHOWN_LENGTH]}")
    scheduler.release_and_claim(worker, acks=(), ends=[end], sequence=ONCE, inline=False, may_hold=NOTHING)


def _as_handed_out(scheduler: Scheduler, app: Celery, claim: Claim, now_us: int) -> HandedOutJob:
    message = message_of_claim(claim.message)
    headers, properties = message["headers"], message["properties"]
    task = app.tasks.get(headers["task"])
    if task is None:
        raise ValueError(f"NotRegistered: {headers['task'][:100]}: the app of the web process lacks the task")
    retries = as_whole_number(headers.get("retries") or 0)
    if retries is None:
        raise ValueError(f"its header retries must be a whole number, got: {describe_shape(headers['retries'])}")
    selected = _selected_call(scheduler, app, claim)
    args, kwargs = _decode_arguments(selected or message)
    try:
        strict_json([headers["id"], args, kwargs])
    except ValueError as exc:
        raise LeftToCeleryError(f"its id and arguments must have a form in JSON (RFC 8259): {exc}") from exc
    rules = rules_in(properties.get(PROPERTY))
    return HandedOutJob(
        claim.job_id,
        int(claim.fence),
        claim.type,
        headers["task"],
        headers["id"],
        args,
        kwargs,
        claim.deliveries,
        claim.requeues,
        retries,
        max(0, now_us - claim.enqueued_us) / SECOND_US,
        None if claim.expires_us is None else max(0, claim.expires_us - now_us) / SECOND_US,
        bool(task.acks_late),
        key_in(rules),
        tenant_in(rules),
    )


def _selected_call(scheduler: Scheduler, app: Celery, claim: Claim) -> Message | None:
    """Return the message of the call whose arguments a merged run uses, or None if it is the claim's own.

    Raises LeftToCeleryError if the task's merging runs a function or passes all calls to the task, which needs Python.
    """
    if not (is_batch(claim.job_id) or is_merged(claim.job_id)):
        return None
    merge = merge_of(app.tasks[message_of_claim(claim.message)["headers"]["task"]])
    if merge is None:
        return None
    if merge.keep == "all" or merge.functions:
        functions = [*(name for name, _ in merge.functions), *(["keep='all'"] if merge.keep == "all" else [])]
        raise LeftToCeleryError(f"its calls merge with {', '.join(functions)}, which is for workers in Python")
    if merge.keep == "first" or not is_batch(claim.job_id):
        return None
    raw, at_us, after = claim.message, -1, 0
    while True:
        page = scheduler.batch_calls(claim.job_id, fence=claim.fence, after=after)
        if page is None:
            break
        at_us = max(at_us, page.primary_us) if raw is claim.message else at_us
        for caller in page.callers:
            if caller.published_us >= at_us:
                raw, at_us = caller.message, caller.published_us
        if page.after is None:
            break
        after = page.after
    return message_of_claim(raw)


def _decode_arguments(message: Message) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments in a message. Raises LeftToCeleryError unless it is JSON, ValueError for invalid JSON."""
    content_type = bounded_text(message.get("content-type"))
    encoding = (bounded_text(message.get("content-encoding")) or "").lower()
    is_json = content_type == "application/json" and encoding in ("utf-8", "utf8", "us-ascii")
    if not is_json or "compression" in message["headers"]:
        compression = bounded_text(message["headers"].get("compression"))
        described = f"{content_type}, {encoding}" + (f", {compression}" if compression else "")
        raise LeftToCeleryError(f"its body must be JSON (application/json in utf-8, not compressed), got: {described}")
    try:
        # The callbacks, which are not handed out, may be nested deeper than arguments.
        args, kwargs, _ = loads(raw_body(message, MAX_CHARACTERS), max_depth=None)
    except (ValueError, TypeError) as exc:
        raise ValueError(f"its body must be JSON of the second protocol: {type(exc).__name__}: {exc}") from exc
    if not (isinstance(args, list) and isinstance(kwargs, dict)):
        raise ValueError("its body must have a list of arguments, and a dict of those by name")
    return args, kwargs


#: Maximum number of workers whose inboxes one thread reads, and of threads.
_MAX_WORKERS_PER_THREAD, _MAX_THREADS = 50, 40
#: Maximum seconds of one BRPOP: shorter than the reply timeout of a connection.
_POLL_S = 1
#: The item for a request that stops waiting, because another request waits for the same worker.
NOBODY = b""
#: Seconds until an unread nudge expires, and seconds for which a thread without waiting workers is kept.
_NUDGE_KEPT_S, _KEEP_THREAD_S = 10, 5.0


class TooManyPollsError(Exception):
    """No more workers can wait in this process."""


@dataclass(eq=False)
class _Waiter:
    """A worker that waits. *item*: the item of its inbox; set in the loop of the waiting request."""

    worker: str
    loop: asyncio.AbstractEventLoop
    item: asyncio.Future[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.item = self.loop.create_future()

    def resolve(self, item: bytes | BaseException, undelivered: Callable[[bytes], object]) -> None:
        """Deliver an item, or an error, from another thread."""

        def resolve() -> None:
            if self.item.done():
                if isinstance(item, bytes):
                    undelivered(item)
            elif isinstance(item, bytes):
                self.item.set_result(item)
            else:
                self.item.set_exception(item)

        try:
            self.loop.call_soon_threadsafe(resolve)
        except RuntimeError:  # the loop is closed, because the process ends
            logger.debug("Nobody waits for worker %s any more", self.worker)


class _PollConnection:
    """A thread that waits for the inboxes of up to 50 workers with one BRPOP, and sends their heartbeats while waiting.

    A new waiting worker ends the BRPOP with a nudge, so that the next one includes its inbox.
    """

    def __init__(self, open_scheduler: Callable[[], Scheduler], heartbeat_every_s: float) -> None:
        self._open_scheduler, self._heartbeat_every_s = open_scheduler, heartbeat_every_s
        self.waiting: dict[str, _Waiter] = {}
        self.lock = threading.Lock()
        self.has_ended = False
        self._id = uuid.uuid4().hex
        self._undelivered: list[tuple[str, bytes]] = []
        self._heartbeat_s = time.monotonic()
        self.thread = threading.Thread(target=self._run, name="affinity-web-listening", daemon=True)

    def nudge(self, scheduler: Scheduler) -> None:
        """Make the thread also read the inboxes of new waiting workers."""
        key = scheduler.keys.key("nudges", self._id)
        with scheduler.client.pipeline(transaction=False) as pipe:
            pipe.lpush(key, "").expire(key, _NUDGE_KEPT_S).execute()

    def _run(self) -> None:
        scheduler = None
        try:
            scheduler = self._open_scheduler()
            idle_since_s = time.monotonic()
            while True:
                with self.lock:
                    waiting = dict(self.waiting)
                    if waiting or self._undelivered:
                        idle_since_s = time.monotonic()
                    elif time.monotonic() - idle_since_s > _KEEP_THREAD_S:
                        self.has_ended = True
                        return
                self._poll(scheduler, waiting)
        except Exception as exc:  # the broker is down or refuses: waiting requests get the error and are repeated
            self._fail(exc)
        finally:
            if scheduler is not None:
                scheduler.close()

    def _poll(self, scheduler: Scheduler, waiting: dict[str, _Waiter]) -> None:
        key = scheduler.keys.key
        inboxes = {key("inbox", worker): worker for worker in waiting}
        reply = scheduler.client.execute_command("BRPOP", *inboxes, key("nudges", self._id), _POLL_S)
        worker = inboxes.get(decode_text(reply[0])) if reply else None
        if worker is not None:
            with self.lock:
                waiter = self.waiting.pop(worker, None)
            if waiter is None:
                self._undelivered.append((worker, reply[1]))
            else:
                waiter.resolve(reply[1], lambda item: self._undelivered.append((worker, item)))
        self._return_undelivered(scheduler)
        if time.monotonic() - self._heartbeat_s > self._heartbeat_every_s:
            self._send_heartbeats(scheduler)

    def _return_undelivered(self, scheduler: Scheduler) -> None:
        """Return jobs that arrived after their request stopped waiting, with their age."""
        while self._undelivered:
            worker, item = self._undelivered[0]
            if not item.startswith(b"\n"):
                job_id, fence = decode_text(item).split(" ", 2)[:2]
                scheduler.requeue(worker, [(job_id, fence)], counted=False)
            del self._undelivered[0]

    def _send_heartbeats(self, scheduler: Scheduler) -> None:
        self._heartbeat_s = time.monotonic()
        with self.lock:
            waiting = list(self.waiting.values())
        replies = scheduler.heartbeats([waiter.worker for waiter in waiting])
        for waiter, is_known in zip(waiting, replies, strict=True):
            if not is_known:
                with self.lock:
                    self.waiting.pop(waiter.worker, None)
                waiter.resolve(unknown_worker_error(waiter.worker), lambda _: None)

    def _fail(self, exc: Exception) -> None:
        if not isinstance(exc, (RedisError, OSError)):
            logger.exception("A thread that reads inboxes has ended")
        with self.lock:
            self.has_ended = True
            waiting, self.waiting = list(self.waiting.values()), {}
        for waiter in waiting:
            waiter.resolve(exc, lambda _: None)


class InboxPoller:
    """Waits for the inboxes of many workers, on one event loop. *open_scheduler* returns a dedicated scheduler."""

    def __init__(self, open_scheduler: Callable[[], Scheduler], heartbeat_every_s: float) -> None:
        self._open_scheduler, self._heartbeat_every_s = open_scheduler, heartbeat_every_s
        self._connections: list[_PollConnection] = []
        self._connection_of: dict[str, _PollConnection] = {}

    def begin(self, worker: str) -> tuple[_PollConnection, "asyncio.Future[bytes]"]:
        """Start to wait for a worker, and stop an earlier wait for it. Raises TooManyPollsError."""
        self.end(worker)
        waiter = _Waiter(worker, asyncio.get_running_loop())
        self._connections = [connection for connection in self._connections if not connection.has_ended]
        for connection in self._connections:
            with connection.lock:
                if len(connection.waiting) < _MAX_WORKERS_PER_THREAD and not connection.has_ended:
                    connection.waiting[worker] = waiter
                    self._connection_of[worker] = connection
                    return connection, waiter.item
        if len(self._connections) >= _MAX_THREADS:
            raise TooManyPollsError(f"{_MAX_WORKERS_PER_THREAD * _MAX_THREADS:,} workers wait in this process already")
        connection = _PollConnection(self._open_scheduler, self._heartbeat_every_s)
        connection.waiting[worker] = waiter
        self._connections.append(connection)
        self._connection_of[worker] = connection
        connection.thread.start()
        return connection, waiter.item

    def end(self, worker: str, item: "asyncio.Future[bytes] | None" = None) -> None:
        """Stop waiting for a worker. *item*: only if it is still the current wait."""
        connection = self._connection_of.get(worker)
        if connection is not None:
            with connection.lock:
                waiter = connection.waiting.get(worker)
                if waiter is None or item in (None, waiter.item):
                    self._connection_of.pop(worker)
                    connection.waiting.pop(worker, None)
                    item = item if waiter is None else waiter.item
        if item is not None and not item.done():
            item.set_result(NOBODY)  # items that still arrive are returned
