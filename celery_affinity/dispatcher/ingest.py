"""Move messages that stock Celery's producers sent to scheduled queues from kombu's lists into the lanes.

A producer without this transport (an older version of the app, a program in another language) pushes messages in
Celery's wire format to a list that no worker of a scheduled queue reads. So each tick reads the lists of all queues
with live workers.
"""

import secrets
import time
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

from celery import Celery
from kombu.transport.redis import Channel
from redis.exceptions import OutOfMemoryError, ResponseError

from ..log_limit import limited_logger
from ..options.affinity import Affinity
from ..options.call_options import options_in
from ..options.due_times import DEADLINE, WITHIN, absolute_deadline
from ..publishing import message_body, option_resolution
from ..publishing.app_config import rules_by_name, settings_of, tasks_of
from ..publishing.message import JobHeader, parse_message, parse_time, stamps_of, to_server_priority
from ..scheduler.scheduler import Scheduler
from ..schema import job_record
from ..schema.constants import MAX_MOVES, MAX_PRIORITY
from ..schema.job_record import NewJob
from ..schema.untrusted import clamp, shown_text
from ..schema.values import decode_part

logger = limited_logger(__name__)
#: Seconds between two reads of the queues that live workers serve.
_QUEUES_READ_EVERY_S = 15.0
#: Maximum number of queues whose lists one tick reads.
_MAX_QUEUES_PER_TICK = 100
#: Seconds before another attempt to move a list that cannot be moved (missing rights, another program's key).
_RETRY_LIST_S = 600.0
#: Maximum number of messages moved after one tick, in about 0.2 s: due jobs must not wait for a long backlog.
_MAX_MOVED_PER_TICK = 500
#: Message size in bytes above which a list is read one message at a time, because the server buffers a whole reply.
_LARGE_MESSAGE_BYTES = 100_000


class Ingest:
    """Moves messages, using the priorities, the time zone and the transport options of *app*."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        options: Mapping[str, Any] = app.conf.broker_transport_options or {}
        self._steps = options.get("priority_steps") or Channel.priority_steps
        self._sep = options.get("sep") or Channel.sep
        self._queues: deque[str] = deque()
        self._queues_read_s: float | None = None
        self._queue_of: dict[str, str] = {}
        self._retry_at_s: dict[str, float] = {}
        self._large_lists: set[str] = set()

    def lists(self, scheduler: Scheduler) -> list[str]:
        """Return the lists that a tick must read, high priorities first: those of the next 100 queues."""
        if not settings_of(self._app).ingest:
            return []
        now_s = time.monotonic()
        if self._queues_read_s is None or now_s - self._queues_read_s > _QUEUES_READ_EVERY_S:
            self._queues_read_s = now_s
            self._queues = deque(map(decode_part, sorted(scheduler.reader.capacity())))
        prefix = scheduler.keys.of_kombu
        queues = list(islice(self._queues, _MAX_QUEUES_PER_TICK))
        self._queues.rotate(-_MAX_QUEUES_PER_TICK)
        self._queue_of = {
            f"{prefix}{queue}{self._sep}{step}" if step else f"{prefix}{queue}": queue
            for step in self._steps
            for queue in queues
        }
        return [name for name in self._queue_of if self._retry_at_s.get(name, 0.0) <= now_s]

    def move(self, scheduler: Scheduler, lists: list[str]) -> bool:
        """Move about 500 messages of *lists* (see the method `lists`). Return True if there may be more."""
        moved = 0
        while lists and moved < _MAX_MOVED_PER_TICK:
            counts = {name: self._move_some(scheduler, name) for name in lists}
            moved += sum(counts.values())
            lists = [
                name for name, count in counts.items() if count == MAX_MOVES or (count and name in self._large_lists)
            ]
        if moved:
            logger.info("Took over %d message(s) of stock Celery's producers", moved)
        return bool(lists)

    def _move_some(self, scheduler: Scheduler, name: str) -> int:
        try:
            messages = scheduler.client.lrange(name, -1 if name in self._large_lists else -MAX_MOVES, -1)
            if max(map(len, messages), default=0) > _LARGE_MESSAGE_BYTES:
                self._large_lists.add(name)
            else:
                self._large_lists.discard(name)
            return scheduler.ingest(
                name, [self._as_job(self._queue_of[name], message) for message in reversed(messages)]
            )
        except OutOfMemoryError:
            raise  # the error concerns all lists
        except ResponseError as exc:
            self._retry_at_s[name] = time.monotonic() + _RETRY_LIST_S
            logger.warning("The list %r is skipped for %d s, and its messages stay there: %s", name, _RETRY_LIST_S, exc)
            return 0

    def _as_job(self, queue: str, message: bytes) -> NewJob:
        # A random id, and not a hash: two equal messages are two jobs. The server function prevents repeated moves.
        job_id = secrets.token_urlsafe(15)
        try:
            job = _parse_job(self._app, job_id, queue, message)
            for value in job.arguments:
                if isinstance(value, str):
                    value.encode()  # raises for a text without a UTF-8 form: JSON can contain lone surrogates
            return job
        except Exception as exc:  # any error: a worker would fail on the same message
            # In its list, the message would block all others behind it. A stock worker drops it and breaks.
            logger.warning("A message of queue %r cannot be read and becomes a dead letter: %r", queue, exc)
            return NewJob(job_id, queue, message, readable=False)


def _parse_job(app: Celery, job_id: str, queue: str, raw: bytes) -> NewJob:
    """Return the job of a message. Raises ValueError for a message that Celery did not send."""
    message = parse_message(raw)
    headers, properties = message.get("headers") or {}, message.get("properties")
    if properties is None:
        raise ValueError("a message must have properties")
    fields = headers
    if "task" not in headers:  # version 1 of Celery's protocol, which other languages still use
        body = message_body.read_body(message)
        fields = body if isinstance(body, dict) and "task" in body else {}
    priority = to_server_priority(clamp(properties.get("priority"), 0, MAX_PRIORITY, 0), settings_of(app))
    task_name = shown_text("task name", fields.get("task"))
    named = rules_by_name(task_name, settings_of(app))
    rules = _rules(app, task_name, message)
    job_id = job_record.with_suffix(job_id, rules)
    header = JobHeader(
        job_id,
        queue,
        priority,
        _plain_options(properties, named),
        parse_time(fields.get("eta"), app),
        parse_time(fields.get("expires"), app),
    )
    task = tasks_of(app).get(task_name)
    size = option_resolution.size_of_body(task_name, task, named, lambda: message_body.read_body(message))
    return NewJob(
        job_id,
        queue,
        raw,
        priority=priority,
        delay_us=header.delay_us(),
        task_id=shown_text("task id", fields.get("id") or properties.get("correlation_id")),
        task_name=task_name,
        expires_us=header.expires_us(),
        stamps=stamps_of(headers),
        rules=rules,
        due=header.due_words(size),
        on_demand=header.plain.get("on_demand", False),
    ).checked()


def _plain_options(properties: Mapping[str, Any], named: Affinity) -> dict[str, Any]:
    """Return the plain options in the *properties* of a message. A relative deadline counts from now."""
    options = options_in(properties)
    if named.start_within is not None:
        options.setdefault(WITHIN, named.start_within)
    if DEADLINE in options:
        options[DEADLINE] = absolute_deadline(options[DEADLINE], time.time())
    return options


def _rules(app: Celery, task_name: str, message: Mapping[str, Any]) -> str:
    """Return the ``affinity_task_rules`` for a message, or "" if there are none or its arguments yield no key."""
    settings = settings_of(app)
    if not settings.task_rules:
        return ""
    try:
        return option_resolution.rule_by_name(task_name, tasks_of(app).get(task_name), message, settings)
    except Exception as exc:  # any error: a custom function may compute the key
        # The producer cannot be notified. Without its key the job may overlap another; dead-lettered it never runs.
        logger.warning("A message of task %r is scheduled without its key in affinity_task_rules: %s", task_name, exc)
        return ""
