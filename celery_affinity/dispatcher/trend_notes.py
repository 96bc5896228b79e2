"""Notes of what waits, by type, once a minute: one process of those that tick writes them, for all who look."""

import time

from redis.exceptions import ResponseError

from ..log_limit import limited_logger
from ..observe import trend
from ..server.scheduler import Scheduler

logger = limited_logger(__name__)

#: Interval, s, of the notes, and the time for which they are kept without further ones.
_EVERY_S = 60.0
_KEPT_S = 3_600


class TrendNotes:
    """Writes a note when a minute is over and no other process has."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def write(self, scheduler: Scheduler) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _EVERY_S
        try:
            self._write(scheduler)
        except ResponseError as exc:  # somebody else's data stand there, or rights are missing: ticks go on
            logger.debug("No note of what waits: %s", exc)

    def _write(self, scheduler: Scheduler) -> None:
        client, key = scheduler.client, scheduler.keys.key
        if not client.set(key("trend_written"), 1, nx=True, px=int(0.9 * _EVERY_S * 1000)):
            return
        note = trend.note(scheduler.reader)
        with client.pipeline(transaction=False) as pipe:
            pipe.lpush(key("trend"), note)
            pipe.ltrim(key("trend"), 0, trend.KEPT - 1)
            pipe.expire(key("trend"), _KEPT_S)
            pipe.execute()
