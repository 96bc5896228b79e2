"""What stock Celery's producers sent to scheduled queues: from kombu's lists into the lanes.

A producer that has not this transport (an older version of the app, a program in another language) pushes Celery's
wire format on a list that nobody here waits for. So the dispatcher looks there, for the queues that live workers serve.
"""

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from celery import Celery
from kombu.log import get_logger
from kombu.transport.redis import Channel
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from redis.exceptions import NoPermissionError

from . import revoking
from .keys import decode
from .scheduler import MOST, Scheduler, Stock
from .score import MAX_PRIORITY
from .stamping import HEADER, Stamp, as_counted, moment, settings_of

logger = get_logger(__name__)

#: Which queues live workers serve is asked so often, s.
_SERVED_FOR_S = 5.0

#: Messages moved in one run, some 50 ms: what is due must not wait for a long backlog.
_MOST_IN_A_RUN = 500


class Ingest:
    """Moves messages as *app* reads them: its priorities, its time zone, its transport options."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        options: Mapping[str, Any] = app.conf.broker_transport_options or {}
        self._steps = options.get("priority_steps") or Channel.priority_steps
        self._sep = options.get("sep") or Channel.sep
        self._queues: list[str] = []
        self._asked_s: float | None = None
        self._forbidden: set[str] = set()

    def run(self, scheduler: Scheduler) -> int:
        """Move what waits, some hundred messages at most. Return how many; 0 costs one command."""
        lists = self._lists(scheduler)
        if not lists or not self._is_anything_in(scheduler, lists):
            return 0
        moved = 0
        while moved < _MOST_IN_A_RUN:
            in_this_round = sum(scheduler.ingest(batch) for batch in self._batches(scheduler, lists))
            moved += in_this_round
            if not in_this_round:
                break
        logger.info("%d message(s) of stock Celery's producers are scheduled from now on", moved)
        return moved

    def _lists(self, scheduler: Scheduler) -> dict[str, str]:
        """Return the lists to look at, those of high priority first, each with its queue."""
        now_s = time.monotonic()
        if self._asked_s is None or now_s - self._asked_s > _SERVED_FOR_S:
            self._asked_s = now_s
            served = scheduler.client.hkeys(scheduler.keys.key("capacity"))
            self._queues = sorted(decode(each.decode()) for each in served)
        prefix = scheduler.keys.global_keyprefix
        return {
            f"{prefix}{queue}{self._sep}{step}" if step else f"{prefix}{queue}": queue
            for step in self._steps
            for queue in self._queues
            if queue not in self._forbidden
        }

    def _is_anything_in(self, scheduler: Scheduler, lists: dict[str, str]) -> bool:
        try:
            return bool(scheduler.client.exists(*lists))
        except NoPermissionError:
            self._find_out_what_is_forbidden(scheduler, lists)
            return False

    def _find_out_what_is_forbidden(self, scheduler: Scheduler, lists: dict[str, str]) -> None:
        """Leave the queues of other apps to those who have a right to them."""
        with scheduler.client.pipeline(transaction=False) as pipe:
            for each in lists:
                pipe.exists(each)
            replies = pipe.execute(raise_on_error=False)
        for queue, reply in zip(lists.values(), replies, strict=True):
            if isinstance(reply, NoPermissionError) and queue not in self._forbidden:
                self._forbidden.add(queue)
                logger.info("No right to the list of queue %r: what others sent there is left to other workers", queue)

    def _batches(self, scheduler: Scheduler, lists: dict[str, str]) -> Iterator[list[Stock]]:
        with scheduler.client.pipeline(transaction=False) as pipe:
            for each in lists:
                pipe.lrange(each, -MOST, -1)
            found = pipe.execute()
        for (name, queue), messages in zip(lists.items(), found, strict=True):
            if messages:
                yield [self._as_job(name, queue, message) for message in reversed(messages)]

    def _as_job(self, name: str, queue: str, message: bytes) -> Stock:
        # Not made of the message: two that are alike are two jobs. That none is moved twice is the script's doing.
        job_id = uuid.uuid4().hex
        try:
            return _described(self._app, Stock(job_id, name, queue, message))
        except Exception as exc:  # whatever it is, a worker would stumble over the same
            # Left where it is, it would hold up all that follow; a stock worker that reads it drops it, and breaks.
            logger.warning("A message of queue %r cannot be read, it goes to the dead letters: %r", queue, exc)
            return Stock(job_id, name, queue, message, readable=False)


def _described(app: Celery, given: Stock) -> Stock:
    """Return the job with what its message says of it. Raises anything, if the message is not what Celery sends."""
    message = loads(bytes_to_str(given.message))
    headers, properties = message.get("headers") or {}, message["properties"]
    said = headers if "task" in headers else _said_in_body(message)
    ours = headers.get(HEADER)
    asks_for = {**properties, **(ours if isinstance(ours, dict) else {})}
    stamp = Stamp(
        given.job_id,
        given.type,
        as_counted(_bent(properties.get("priority")), settings_of(app)),
        on_demand=asks_for.get("on_demand") is True,
        due=moment(said.get("eta"), app),
        expires=moment(said.get("expires"), app),
    )
    return given._replace(
        on_demand=stamp.on_demand,
        priority=stamp.priority,
        delay_us=stamp.delay_us(),
        expires_us=stamp.expires_us(),
        task_id=str(said.get("id") or properties.get("correlation_id") or ""),
        task_name=str(said.get("task") or ""),
        stamps=revoking.stamps_of(headers),
    )


def _said_in_body(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the first version of Celery's protocol has in the body: many other languages still write it."""
    body = revoking.decoded(message)
    return body if isinstance(body, dict) and "task" in body else {}


def _bent(priority: object) -> int:
    """Return a priority as kombu takes it: it refuses none."""
    try:
        return max(0, min(int(priority), MAX_PRIORITY))  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return 0
