"""Move the messages that stock Celery's producers sent to scheduled queues from kombu's lists into the lanes.

A producer without this transport (an older version of the app, a program in another language) pushes messages in
Celery's wire format on a list that no worker of a scheduled queue reads. So each tick looks at the lists of the queues
that live workers serve.
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
from ..options.call_options import options_in
from ..publishing import message_body, option_resolution
from ..publishing.app_config import settings_of, tasks_of
from ..publishing.message import JobHeader, Message, parse_message, parse_time, stamps_of, with_retry_count
from ..scheduler.scheduler import Scheduler
from ..schema import job_record
from ..schema.constants import MAX_PRIORITY, MOST_MOVES
from ..schema.job_record import NewJob
from ..schema.untrusted import clamp, shown_text
from ..schema.values import decode_part

logger = limited_logger(__name__)

#: Interval, s, at which the queues that live workers serve are read anew.
_SERVED_FOR_S = 15.0

#: Most queues whose lists one tick looks at.
_QUEUES_IN_A_TICK = 100

#: Pause, s, before a list that cannot be moved (no right to it, another program's key) is tried again.
_LEFT_ALONE_S = 600.0

#: Messages, at most, that are moved after one tick, in about 0.2 s: due jobs must not wait for a long backlog.
_MOST_AFTER_A_TICK = 500

#: Size of a message, bytes, above which its list is read one message at a time: the server holds a whole reply at once.
_LARGE = 100_000


class Ingest:
    """Move messages, read with the priorities, the time zone and the transport options of *app*."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        options: Mapping[str, Any] = app.conf.broker_transport_options or {}
        self._steps = options.get("priority_steps") or Channel.priority_steps
        self._sep = options.get("sep") or Channel.sep
        self._queues: deque[str] = deque()
        self._asked_s: float | None = None
        self._queue_of: dict[str, str] = {}
        self._left_alone: dict[str, float] = {}
        self._reads_one: set[str] = set()

    def lists(self, scheduler: Scheduler) -> list[str]:
        """Return the lists for a tick to look at, high priorities first; of more than 100 queues, the next 100."""
        if not settings_of(self._app).ingest:
            return []
        now_s = time.monotonic()
        if self._asked_s is None or now_s - self._asked_s > _SERVED_FOR_S:
            self._asked_s = now_s
            self._queues = deque(map(decode_part, sorted(scheduler.reader.capacity())))
        prefix = scheduler.keys.of_kombu
        queues = list(islice(self._queues, _QUEUES_IN_A_TICK))
        self._queues.rotate(-_QUEUES_IN_A_TICK)
        self._queue_of = {
            f"{prefix}{queue}{self._sep}{step}" if step else f"{prefix}{queue}": queue
            for step in self._steps
            for queue in queues
        }
        return [name for name in self._queue_of if self._left_alone.get(name, 0.0) <= now_s]

    def move(self, scheduler: Scheduler, lists: list[str]) -> bool:
        """Move messages of *lists* (see the method `lists`), about 500 at most. Return whether more may be left."""
        moved = 0
        while lists and moved < _MOST_AFTER_A_TICK:
            counts = {name: self._move_some(scheduler, name) for name in lists}
            moved += sum(counts.values())
            lists = [
                name for name, count in counts.items() if count == MOST_MOVES or (count and name in self._reads_one)
            ]
        if moved:
            logger.info("Took over %d message(s) of stock Celery's producers", moved)
        return bool(lists)

    def _move_some(self, scheduler: Scheduler, name: str) -> int:
        try:
            found = scheduler.client.lrange(name, -1 if name in self._reads_one else -MOST_MOVES, -1)
            if max(map(len, found), default=0) > _LARGE:
                self._reads_one.add(name)
            else:
                self._reads_one.discard(name)
            return scheduler.ingest(name, [self._as_job(self._queue_of[name], message) for message in reversed(found)])
        except OutOfMemoryError:
            raise  # no single list is to blame
        except ResponseError as exc:
            self._left_alone[name] = time.monotonic() + _LEFT_ALONE_S
            logger.warning(
                "The list %r is left alone for %d s, and its messages stay there: %s", name, _LEFT_ALONE_S, exc
            )
            return 0

    def _as_job(self, queue: str, message: bytes) -> NewJob:
        # The id is random, not a hash: two equal messages are two jobs. The arrow sees to it that none is moved twice.
        job_id = secrets.token_urlsafe(15)
        try:
            job = _read(self._app, job_id, queue, message)
            _check_texts(job)
            return job
        except Exception as exc:  # any: a worker would stumble over the same message
            # Left in its list, the message would hold up all others behind it. A stock worker drops it, and breaks.
            logger.warning("A message of queue %r cannot be read and becomes a dead letter: %r", queue, exc)
            return NewJob(job_id, queue, message, readable=False)


def _read(app: Celery, job_id: str, queue: str, raw: bytes) -> NewJob:
    """Return the job that a message asks for. Raises ValueError for a message that Celery did not send."""
    message = parse_message(raw)
    headers, properties = message.get("headers") or {}, message.get("properties")
    if properties is None:
        raise ValueError("a message must have properties")
    said = headers if "task" in headers else _said_in_body(message)
    priority = with_retry_count(clamp(properties.get("priority"), 0, MAX_PRIORITY, 0), settings_of(app))
    plain = options_in(properties)
    task_name = shown_text("task name", said.get("task"))
    rules = _rules(app, task_name, message)
    job_id = job_record.with_suffix(job_id, rules)
    stamp = JobHeader(
        job_id, queue, priority, plain, parse_time(said.get("eta"), app), parse_time(said.get("expires"), app)
    )
    return NewJob(
        job_id,
        queue,
        raw,
        priority=priority,
        delay_us=stamp.delay_us(),
        task_id=shown_text("task id", said.get("id") or properties.get("correlation_id")),
        task_name=task_name,
        expires_us=stamp.expires_us(),
        stamps=stamps_of(headers),
        rules=rules,
        **plain,
    ).checked()


def _rules(app: Celery, task_name: str, message: Mapping[str, Any]) -> str:
    """Return the rules that ``affinity_task_rules`` has for a message; "" for none, or if its arguments make no key."""
    settings = settings_of(app)
    if not settings.task_rules:
        return ""
    try:
        return option_resolution.rule_by_name(task_name, tasks_of(app).get(task_name), message, settings)
    except Exception as exc:  # any: a function of the user's may make the key
        # Its producer cannot be told. Without its key the job may run beside another; as a dead letter it never would.
        logger.warning("A message of task %r is scheduled without its key in affinity_task_rules: %s", task_name, exc)
        return ""


def _check_texts(job: NewJob) -> None:
    """Raise UnicodeEncodeError if a text of *job* has no UTF-8 form: JSON can spell lone surrogates."""
    for value in job.arguments:
        if isinstance(value, str):
            value.encode()


def _said_in_body(message: Message) -> Mapping[str, Any]:
    """Return the fields that version 1 of Celery's protocol, still common in other languages, has in the body."""
    body = message_body.decode_body(message)
    return body if isinstance(body, dict) and "task" in body else {}
