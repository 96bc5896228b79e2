"""Reads the inbox of one cohort in a thread, since one BRPOP cannot wait on two servers, or on two shards.

A server that is down holds up nobody else's jobs.
"""

from collections.abc import Callable
from contextlib import suppress

from redis.exceptions import RedisError, ResponseError

from ..log_limit import limited_logger
from ..server import received
from ..server.replies import Claim
from ..server.scheduler import Scheduler
from ..threads.repeating import Repeating

logger = limited_logger(__name__)

#: Longest wait, s, of one call for the inbox, and pause after an error.
_WAITS_S = 2.0
_RETRY_S = 0.5

#: Time, s, after which the word that ends a wait is gone.
_NUDGE_KEPT_S = 10


class InboxReader:
    """Calls *receive* with each claim in the inbox of *worker*, and *obey* with each sign, until stopped.

    *scheduler*: on connections of its own.
    """

    def __init__(
        self,
        cohort: str,
        scheduler: Scheduler,
        worker: str,
        *,
        receive: Callable[[Claim], None],
        obey: Callable[[list[str]], None],
    ) -> None:
        self._scheduler, self._worker = scheduler, worker
        self._inbox, self._nudges = (scheduler.keys.key(name, worker) for name in ("inbox", "nudges"))
        self._receive, self._obey = receive, obey
        timeout_s = scheduler.client.connection_pool.connection_kwargs.get("socket_timeout") or 2 * _WAITS_S
        self._waits_s = min(_WAITS_S, timeout_s / 2)
        self._is_stopped = False
        self._reading = Repeating(f"affinity-inbox-{cohort}", self._read, 0.0)

    def start(self) -> None:
        self._reading.start()

    def use(self, scheduler: Scheduler) -> None:
        """Go on with another *scheduler* of the same cohort."""
        before, self._scheduler = self._scheduler, scheduler
        before.close()

    def stop(self) -> None:
        """Read no more. What is still in the inbox goes back with the worker's leave."""
        self._is_stopped = True
        with suppress(RedisError, OSError), self._scheduler.client.pipeline(transaction=False) as pipe:
            pipe.lpush(self._nudges, "")  # ends the wait
            pipe.expire(self._nudges, _NUDGE_KEPT_S)
            pipe.execute()
        self._reading.stop()
        self._scheduler.close()

    def _read(self) -> float | None:
        if self._is_stopped:
            return _WAITS_S
        try:
            reply = self._scheduler.client.execute_command("BRPOP", self._inbox, self._nudges, self._waits_s)
        except ResponseError as exc:
            if str(exc).startswith("WRONGTYPE"):
                with suppress(RedisError, OSError):
                    self._scheduler.repair([self._worker])
            return _RETRY_S
        except (RedisError, OSError):
            return _RETRY_S  # the heartbeats say so in the log
        if reply and reply[0].decode() == self._inbox:
            self._read_item(reply[1])
        return None

    def _read_item(self, item: bytes) -> None:
        try:
            claim = None if item.startswith(b"\n") else Claim.parse(item)
            sign = item.decode().split() if claim is None else []
        except ValueError as exc:
            received.drop("the inbox", item, exc)  # a job that was there is given back by the next sync
            return
        if claim is not None:
            self._receive(claim)
        else:
            self._obey(sign)
