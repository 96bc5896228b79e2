"""What stock Celery's producers sent to scheduled queues: from kombu's lists into the lanes.

A producer that has not this transport (an older version of the app, a program in another language) pushes Celery's
wire format on a list that nobody here waits for. So each tick looks there, for the queues that live workers serve.
"""

import logging
import secrets
import time
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

from celery import Celery
from kombu.transport.redis import Channel
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from redis.exceptions import OutOfMemoryError, ResponseError

from ..client import revokes
from ..client.stamping import Stamp, as_counted, moment, settings_of
from ..rules.keys import decode
from ..rules.score import MAX_PRIORITY
from ..server.replies import Job
from ..server.scheduler import MOST, Scheduler

logger = logging.getLogger(__name__)

#: Which queues live workers serve is asked so often, s.
_SERVED_FOR_S = 15.0

#: Queues that one tick looks at.
_QUEUES_IN_A_TICK = 100

#: A list that cannot be moved (no right to it, another program's key) is tried again so much later, s.
_LEFT_ALONE_S = 600.0

#: Messages moved after one tick, which takes some 0.2 s: what is due must not wait for a long backlog.
_MOST_AFTER_A_TICK = 500

#: After a message of so many bytes the next one of its list is read alone: a server reads those of one call at once.
_LARGE = 100_000


class Ingest:
    """Moves messages as *app* reads them: its priorities, its time zone, its transport options."""

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
        """Return the lists that a tick is to look at, those of high priority first; of many queues in turn."""
        if not settings_of(self._app).ingest:
            return []
        now_s = time.monotonic()
        if self._asked_s is None or now_s - self._asked_s > _SERVED_FOR_S:
            self._asked_s = now_s
            self._queues = deque(map(decode, sorted(scheduler.reader.capacity())))
        prefix = scheduler.keys.global_keyprefix
        queues = list(islice(self._queues, _QUEUES_IN_A_TICK))
        self._queues.rotate(-_QUEUES_IN_A_TICK)
        self._queue_of = {
            f"{prefix}{queue}{self._sep}{step}" if step else f"{prefix}{queue}": queue
            for step in self._steps
            for queue in queues
        }
        return [name for name in self._queue_of if self._left_alone.get(name, 0.0) <= now_s]

    def move(self, scheduler: Scheduler, lists: list[str]) -> bool:
        """Move what is in *lists*, which `lists` returned, some hundred messages at most. Return whether to go on."""
        moved = 0
        while lists and moved < _MOST_AFTER_A_TICK:
            counts = {name: self._move_some(scheduler, name) for name in lists}
            moved += sum(counts.values())
            lists = [name for name, count in counts.items() if count == MOST or (count and name in self._reads_one)]
        if moved:
            logger.info("%d message(s) of stock Celery's producers are scheduled from now on", moved)
        return bool(lists)

    def _move_some(self, scheduler: Scheduler, name: str) -> int:
        try:
            found = scheduler.client.lrange(name, -1 if name in self._reads_one else -MOST, -1)
            if max(map(len, found), default=0) > _LARGE:
                self._reads_one.add(name)
            else:
                self._reads_one.discard(name)
            return scheduler.ingest(name, [self._as_job(self._queue_of[name], message) for message in reversed(found)])
        except OutOfMemoryError:
            raise  # no list of them is to blame
        except ResponseError as exc:
            self._left_alone[name] = time.monotonic() + _LEFT_ALONE_S
            logger.warning("The list %r is left alone for %d s, what is sent stays there: %s", name, _LEFT_ALONE_S, exc)
            return 0

    def _as_job(self, queue: str, message: bytes) -> Job:
        # Not made of the message: two that are alike are two jobs. That none is moved twice is the script's doing.
        job_id = secrets.token_urlsafe(15)
        try:
            job = _read(self._app, job_id, queue, message)
            _check_texts(job)
            return job
        except Exception as exc:  # whatever it is, a worker would stumble over the same
            # Left where it is, it would hold up all that follow; a stock worker that reads it drops it, and breaks.
            logger.warning("A message of queue %r cannot be read, it goes to the dead letters: %r", queue, exc)
            return Job(job_id, queue, message, readable=False)


def _read(app: Celery, job_id: str, queue: str, raw: bytes) -> Job:
    """Return the job that a message asks for. Raises anything, if it is not what Celery sends."""
    message = loads(bytes_to_str(raw))
    headers, properties = message.get("headers") or {}, message["properties"]
    said = headers if "task" in headers else _said_in_body(message)
    priority = as_counted(_bent(properties.get("priority")), settings_of(app))
    on_demand = properties.get("on_demand") is True
    stamp = Stamp(job_id, queue, priority, on_demand, moment(said.get("eta"), app), moment(said.get("expires"), app))
    return Job(
        job_id,
        queue,
        raw,
        on_demand=on_demand,
        priority=priority,
        delay_us=stamp.delay_us(),
        task_id=str(said.get("id") or properties.get("correlation_id") or ""),
        task_name=str(said.get("task") or ""),
        expires_us=stamp.expires_us(),
        stamps=revokes.stamps_of(headers),
    ).checked()


def _check_texts(job: Job) -> None:
    """Raise UnicodeEncodeError if Redis cannot have one of the texts of *job*: JSON has some that are none."""
    for value in job.arguments().values():
        if isinstance(value, str):
            value.encode()


def _said_in_body(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the first version of Celery's protocol has in the body: many other languages still write it."""
    body = revokes.decoded(message)
    return body if isinstance(body, dict) and "task" in body else {}


def _bent(priority: object) -> int:
    """Return a priority as kombu takes it: it refuses none."""
    try:
        return max(0, min(int(priority), MAX_PRIORITY))  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return 0
