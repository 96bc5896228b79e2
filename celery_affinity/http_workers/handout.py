"""Jobs that only Celery's workers can run, of types that workers over HTTP serve as well: pickled ones, for example.

Such a job stays pending. The worker over HTTP that got it gives it back, and withdraws from its type, since the
job would come to the same worker again, until one of Celery's workers has the job, or none of them serves the type.

Claims become jobs in JSON. A job that only Celery's workers can run is left to them, where they serve its type; any
other that this cannot be done with is a dead letter. So none is lost.

Inboxes of workers that wait for jobs, read by a thread for each 50 of them: a wait costs no thread of its own.

A thread waits for all of its inboxes with one BRPOP, and says meanwhile that their workers live. Somebody who begins to
wait ends the BRPOP by a nudge, so that the next one has their inbox, too.
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
from ..publishing.message_body import MOST_CHARACTERS, raw_body
from ..publishing.option_sources import rules_in
from ..results.reporter import MOST, printable_error
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

#: Workers that are looked at together for one that is Celery's.
_AT_ONCE = 200


class JobLeftToCelery(NamedTuple):
    """A pending job that workers over HTTP leave to Celery's. *why*: what it has that they cannot run, in words."""

    job_id: str
    type: str
    why: str


def leave_to_celery(scheduler: Scheduler, app: Celery, worker: HttpWorker, claim: Claim, why: str) -> bool:
    """Leave a job that *worker* holds to Celery's workers. Return False, without a change, if none serves its type."""
    if not _is_served(scheduler.reader, claim.type):
        return False
    key = _key(scheduler.reader, worker.id)
    with scheduler.client.pipeline(transaction=False) as pipe:
        pipe.hset(key, claim.job_id, f"{encode_part(claim.type)} {why}").expire(key, KEPT_S).execute()
    _serve(scheduler, app, worker, {each.type for each in jobs_left_by(scheduler.reader, [worker.id])} | {claim.type})
    scheduler.requeue(worker.id, [(claim.job_id, claim.fence)], counted=False)
    return True


def take_left_jobs(scheduler: Scheduler, app: Celery, worker: HttpWorker) -> bool:
    """Have a worker serve those types again whose jobs it need not leave to anybody any more.

    Return whether there are types that it still leaves to Celery's workers.
    """
    reader = scheduler.reader
    withdrawn = {type_ for type_ in map(decode_text, _types(reader, worker)) if type_ != without_mark(type_)}
    if not withdrawn:
        return False
    left = jobs_left_by(reader, [worker.id])
    served = {type_ for type_ in {each.type for each in left} if _is_served(reader, type_)}
    pending = _pending(reader, left)
    over = [each.job_id for each in left if each.type not in served or each.job_id not in pending]
    if over:
        scheduler.client.hdel(_key(reader, worker.id), *over)
    types = {each.type for each in left if each.job_id not in over}
    if {with_mark(encode_part(type_)) for type_ in types} != withdrawn:
        _serve(scheduler, app, worker, types)
    return bool(types)


def jobs_left_by(reader: Reader, workers: Sequence[str]) -> list[JobLeftToCelery]:
    """Return the jobs that *workers* (ids) have left to Celery's; some may have a slot by now, or have ended."""
    found = []
    for row in reader.ask([("hgetall", _key(reader, each)) for each in workers]):
        for job_id, said in row.items():
            type_, _, why = decode_text(said).partition(" ")
            found.append(JobLeftToCelery(decode_text(job_id), decode_part(type_), why))
    return found


def still_left(reader: Reader, workers: Sequence[str]) -> list[JobLeftToCelery]:
    """Return the jobs that *workers* (ids) have left to Celery's, and that are pending: each once."""
    left = jobs_left_by(reader, workers)
    pending = _pending(reader, left)
    return list({each.job_id: each for each in left if each.job_id in pending}.values())


def _serve(scheduler: Scheduler, app: Celery, worker: HttpWorker, withdrawn: set[str]) -> None:
    """Have a worker serve its types but *withdrawn*. It keeps its jobs."""
    scheduler.join(joining_of(app, worker, withdrawn), shared_settings(settings_of(app)))


def _pending(reader: Reader, left: Sequence[JobLeftToCelery]) -> set[str]:
    """Return the ids of those jobs that are pending, and of the type that they were left in."""
    rows = [each.row for each in claims_of_worker(reader, [each.job_id for each in left])]
    return {row.job_id for row, its in zip(rows, left, strict=True) if (row.state, row.type) == ("pending", its.type)}


def _types(reader: Reader, worker: HttpWorker) -> list[bytes]:
    return (reader.ask_one("hget", reader.key("worker", worker.id), "types") or b"").split()


def _is_served(reader: Reader, type_: str) -> bool:
    """Return whether a live worker of Celery's serves a type."""
    word = encode_part(type_)
    profiles = {
        name for name, types in reader.large_hash("profiles").items() if word in map(without_mark, types.split())
    }
    workers = list(reader.large_zset("heartbeats"))
    for first in range(0, len(workers), _AT_ONCE):
        some = workers[first : first + _AT_ONCE]
        its = reader.ask([("hget", reader.key("worker", each), "profile") for each in some])
        serving = [each for each, profile in zip(some, its, strict=True) if decode_text(profile) in profiles]
        if set(serving) - http_workers_among(reader, serving):
            return True
    return False


def _key(reader: Reader, worker: str) -> str:
    return reader.key("left_to_celery", worker)


logger = limited_logger(__name__)

#: The number of a call of `release` that is never repeated as one.
ONCE = 1


@dataclass(frozen=True)
class HandedOutJob:
    """A job for a worker: *id* and *fence* are its claim, which its start, end and heartbeats name.

    *fence* grows with each claim of the fleet: storage that remembers the largest one of a *key* can refuse what an
    older claim still writes. *expires_in_s*: after that it does not start any more. *acks_late*: whether the job runs
    again if the worker dies after the start. *args*, *kwargs*: as the message has them.
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
    """A job is for Celery's workers: its arguments have no strict JSON, or its merging runs a function in Python."""


def hand_out_jobs(scheduler: Scheduler, app: Celery, worker: HttpWorker, claims: Sequence[Claim]) -> list[HandedOutJob]:
    """Return *claims* of *worker* as jobs, without those that are left to Celery's workers, or become dead letters."""
    if not claims:
        return []
    now_us = scheduler.reader.now_us()
    jobs = []
    for claim in claims:
        try:
            jobs.append(_job(scheduler, app, claim, now_us))
        except ValueError as exc:
            why = printable_error(str(exc))
            if isinstance(exc, LeftToCeleryError) and leave_to_celery(scheduler, app, worker, claim, why):
                logger.warning("Job %s is for Celery's workers, and stays pending for them: %s", claim.job_id, why)
            else:
                dead_letter(scheduler, worker.id, claim.job_id, claim.fence, why)
    return jobs


def dead_letter(scheduler: Scheduler, worker: str, job_id: str, fence: str, why: str) -> None:
    """Make a claimed job a dead letter."""
    logger.error("Job %s cannot be run by a worker over HTTP, and becomes a dead letter: %s", job_id, why)
    end = EndArguments(job_id, fence, f"rejected {why[:MOST]}")
    scheduler.release_and_claim(worker, acks=(), ends=[end], sequence=ONCE, inline=False, may_hold=NOTHING)


def _job(scheduler: Scheduler, app: Celery, claim: Claim, now_us: int) -> HandedOutJob:
    message = message_of_claim(claim.message)
    headers, properties = message["headers"], message["properties"]
    task = app.tasks.get(headers["task"])
    if task is None:
        raise ValueError(f"NotRegistered: {headers['task'][:100]}: the app of the web process lacks the task")
    retries = as_whole_number(headers.get("retries") or 0)
    if retries is None:
        raise ValueError(f"its header retries must be a whole number, got: {describe_shape(headers['retries'])}")
    last = _call_that_counts(scheduler, app, claim)
    args, kwargs = _arguments(last or message)
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


def _call_that_counts(scheduler: Scheduler, app: Celery, claim: Claim) -> Message | None:
    """Return the message of the call whose arguments a merged run has, unless that is the claim's own.

    Raises ForCeleryError for a task whose merging runs a function, or gives the task all calls: Python alone has these.
    """
    if not (is_batch(claim.job_id) or is_merged(claim.job_id)):
        return None
    merge = merge_of(app.tasks[message_of_claim(claim.message)["headers"]["task"]])
    if merge is None:
        return None
    if merge.keep == "all" or merge.functions:
        words = ", ".join([*(name for name, _ in merge.functions), *(["keep='all'"] if merge.keep == "all" else [])])
        raise LeftToCeleryError(f"its calls merge with {words}, which is for workers in Python")
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


def _arguments(message: Message) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments in the body of *message*. Raises ForCeleryError unless that says to be JSON.

    Raises ValueError for JSON that is not as Celery writes it.
    """
    kind, encoding = (
        bounded_text(message.get("content-type")),
        (bounded_text(message.get("content-encoding")) or "").lower(),
    )
    if (
        kind != "application/json"
        or encoding not in ("utf-8", "utf8", "us-ascii")
        or "compression" in message["headers"]
    ):
        compression = bounded_text(message["headers"].get("compression"))
        its = f"{kind}, {encoding}" + (f", {compression}" if compression else "")
        raise LeftToCeleryError(f"its body must be JSON (application/json in utf-8, not compressed), got: {its}")
    try:
        # Its callbacks, which stay here, may be nested deeper than arguments.
        args, kwargs, _ = loads(raw_body(message, MOST_CHARACTERS), most_nested=None)
    except (ValueError, TypeError) as exc:
        raise ValueError(f"its body must be JSON of the second protocol: {type(exc).__name__}: {exc}") from exc
    if not (isinstance(args, list) and isinstance(kwargs, dict)):
        raise ValueError("its body must have a list of arguments, and a dict of those by name")
    return args, kwargs


#: Workers whose inboxes one thread reads, at most, and threads, at most.
_MOST_OF_ONE, _MOST_THREADS = 50, 40

#: Longest time, s, of one BRPOP: within the reply timeout of a connection.
_ROUND_S = 1

#: The item for who waits no more, since another request waits for the same worker.
NOBODY = b""

#: Time, s, for which a nudge is kept that nobody reads, and for which a thread outlasts those that wait.
_NUDGE_KEPT_S, _OUTLASTS_S = 10, 5.0


class TooManyPollsError(Exception):
    """No more workers can wait in this process."""


@dataclass(eq=False)
class _Waiting:
    """A worker that waits. *item*: what its inbox had; set in the loop of whoever waits."""

    worker: str
    loop: asyncio.AbstractEventLoop
    item: asyncio.Future[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.item = self.loop.create_future()

    def resolve(self, item: bytes | BaseException, given_back: Callable[[bytes], object]) -> None:
        """Hand over an item, or an error, from another thread."""

        def resolve() -> None:
            if self.item.done():
                if isinstance(item, bytes):
                    given_back(item)
            elif isinstance(item, bytes):
                self.item.set_result(item)
            else:
                self.item.set_exception(item)

        try:
            self.loop.call_soon_threadsafe(resolve)
        except RuntimeError:  # the loop is closed: the process ends
            logger.debug("Nobody waits for worker %s any more", self.worker)


class _PollConnection:
    """A thread, and the workers that wait there."""

    def __init__(self, opened: Callable[[], Scheduler], heartbeat_every_s: float) -> None:
        self._opened, self._heartbeat_every_s = opened, heartbeat_every_s
        self.waiting: dict[str, _Waiting] = {}
        self.lock = threading.Lock()
        self.has_ended = False
        self._id = uuid.uuid4().hex
        self._strays: list[tuple[str, bytes]] = []
        self._heartbeat_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="affinity-web-listening", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self, scheduler: Scheduler) -> None:
        """Have the thread read the inboxes of those who wait now."""
        key = scheduler.keys.key("nudges", self._id)
        with scheduler.client.pipeline(transaction=False) as pipe:
            pipe.lpush(key, "").expire(key, _NUDGE_KEPT_S).execute()

    def _run(self) -> None:
        scheduler = None
        try:
            scheduler = self._opened()
            idle_since_s = time.monotonic()
            while True:
                with self.lock:
                    waiting = dict(self.waiting)
                    if waiting or self._strays:
                        idle_since_s = time.monotonic()
                    elif time.monotonic() - idle_since_s > _OUTLASTS_S:
                        self.has_ended = True
                        return
                self._round(scheduler, waiting)
        except Exception as exc:  # the broker is down, or says no: who waits hears it, and asks again
            self._fail(exc)
        finally:
            if scheduler is not None:
                scheduler.close()

    def _round(self, scheduler: Scheduler, waiting: dict[str, _Waiting]) -> None:
        key = scheduler.keys.key
        inboxes = {key("inbox", each): each for each in waiting}
        reply = scheduler.client.execute_command("BRPOP", *inboxes, key("nudges", self._id), _ROUND_S)
        worker = inboxes.get(decode_text(reply[0])) if reply else None
        if worker is not None:
            with self.lock:
                one = self.waiting.pop(worker, None)
            stray = self._stray(worker)
            if one is None:
                stray(reply[1])
            else:
                one.resolve(reply[1], stray)
        self._give_back(scheduler)
        if time.monotonic() - self._heartbeat_s > self._heartbeat_every_s:
            self._send_heartbeats(scheduler)

    def _stray(self, worker: str) -> Callable[[bytes], object]:
        return lambda item: self._strays.append((worker, item))

    def _give_back(self, scheduler: Scheduler) -> None:
        """Give back jobs that came when nobody waited any more; their age stays intact."""
        while self._strays:
            worker, item = self._strays[0]
            if not item.startswith(b"\n"):
                job_id, fence = decode_text(item).split(" ", 2)[:2]
                scheduler.requeue(worker, [(job_id, fence)], counted=False)
            del self._strays[0]

    def _send_heartbeats(self, scheduler: Scheduler) -> None:
        self._heartbeat_s = time.monotonic()
        with self.lock:
            waiting = list(self.waiting.values())
        known = scheduler.heartbeats([each.worker for each in waiting])
        for each, is_known in zip(waiting, known, strict=True):
            if not is_known:
                with self.lock:
                    self.waiting.pop(each.worker, None)
                each.resolve(unknown_worker_error(each.worker), lambda _: None)

    def _fail(self, exc: Exception) -> None:
        if not isinstance(exc, (RedisError, OSError)):
            logger.exception("A thread that reads inboxes has ended")
        with self.lock:
            self.has_ended = True
            waiting, self.waiting = list(self.waiting.values()), {}
        for each in waiting:
            each.resolve(exc, lambda _: None)


class InboxPoller:
    """Waits for the inboxes of any number of workers, on one event loop. *opened* returns a scheduler of its own."""

    def __init__(self, opened: Callable[[], Scheduler], heartbeat_every_s: float) -> None:
        self._opened, self._heartbeat_every_s = opened, heartbeat_every_s
        self._lines: list[_PollConnection] = []
        self._of: dict[str, _PollConnection] = {}

    def begin(self, worker: str) -> tuple[_PollConnection, "asyncio.Future[bytes]"]:
        """Begin to wait for a worker; whoever waited for it before waits no more. Raises TooManyError."""
        self.end(worker)
        one = _Waiting(worker, asyncio.get_running_loop())
        self._lines = [each for each in self._lines if not each.has_ended]
        for line in self._lines:
            with line.lock:
                if len(line.waiting) < _MOST_OF_ONE and not line.has_ended:
                    line.waiting[worker] = one
                    self._of[worker] = line
                    return line, one.item
        if len(self._lines) >= _MOST_THREADS:
            raise TooManyPollsError(f"{_MOST_OF_ONE * _MOST_THREADS:,} workers wait in this process already")
        line = _PollConnection(self._opened, self._heartbeat_every_s)
        line.waiting[worker] = one
        self._lines.append(line)
        self._of[worker] = line
        line.start()
        return line, one.item

    def end(self, worker: str, item: "asyncio.Future[bytes] | None" = None) -> None:
        """Wait no more for a worker. *item*: only if this one is still what waits."""
        line = self._of.get(worker)
        if line is not None:
            with line.lock:
                one = line.waiting.get(worker)
                if one is None or item in (None, one.item):
                    self._of.pop(worker)
                    line.waiting.pop(worker, None)
                    item = item if one is None else one.item
        if item is not None and not item.done():
            item.set_result(NOBODY)  # what still comes for it is given back
