"""A worker's use of kombu's event loop, and the interface through which its membership reaches Celery's worker."""

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.worker import state
from kombu.asynchronous.hub import Hub

from ..broker.inflight import InFlightCommands
from ..leases.held_claim import ACKED, HeldClaim
from ..scheduler.messages import Claim
from .request_end import LeakedClaims

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

    from .job_feed import JobFeed


class EventLoop:
    """Calls *on_tick* at each iteration of *hub*, and *on_reply* when there is a reply to the commands *in_flight*."""

    def __init__(
        self, hub: Hub, in_flight: InFlightCommands, *, on_tick: Callable[[], None], on_reply: Callable[[], None]
    ) -> None:
        self.in_flight = in_flight
        self._hub = hub
        self._on_tick, self._on_reply = on_tick, on_reply
        self._watched: Any = None
        self._watched_fileno = -1
        self._will_iterate = False
        self._thread = threading.get_ident()
        self._waker = _Waker()
        in_flight.on_open, in_flight.on_close = self.watch, self._unwatch
        hub.add_reader(self._waker.fileno(), self._waker.drain)
        hub.on_tick.add(self._tick)

    @property
    def is_here(self) -> bool:
        """True if the loop runs in the current thread."""
        return threading.get_ident() == self._thread

    def wake(self) -> None:
        """Make the loop iterate soon. Can be called from any thread."""
        if not self._will_iterate and not self.in_flight.is_under_way:
            self._waker.wake()

    def close(self) -> None:
        """Leave the hub. Replies to commands in flight are lost."""
        self._hub.on_tick.discard(self._tick)
        self._hub.remove(self._waker.fileno())
        self._waker.close()
        self.in_flight.close()

    def _tick(self) -> None:
        self._will_iterate = False  # before the reports are read, so that later reports wake the loop
        if self.in_flight.is_unread:
            self._reply()  # even if another file has replaced the connection in the hub
        self._on_tick()
        self.watch()

    def _reply(self) -> None:
        self._will_iterate = True  # the next tick follows immediately
        if self.in_flight.is_under_way:
            self._on_reply()
        else:
            self.in_flight.close()  # the server has closed it too
        self.watch()

    def watch(self) -> None:
        """Watch the current connection, if there is one."""
        socket = self.in_flight.socket
        if socket is self._watched and (socket is None or self._is_in_hub):
            return
        self._unwatch()
        self._watched = socket
        if socket is not None:
            self._watched_fileno = socket.fileno()
            self._hub.add_reader(self._watched_fileno, self._reply)

    def _unwatch(self) -> None:
        if self._is_in_hub:
            self._hub.remove(self._watched_fileno)
        self._watched, self._watched_fileno = None, -1

    @property
    def _is_in_hub(self) -> bool:
        """True if the hub watches the connection. Other code can close that file without notifying the hub."""
        return bool(self._hub.readers.get(self._watched_fileno) == (self._reply, ()))


class _Waker:
    """Ends the wait of an event loop from any thread. Only the newest versions of kombu do so in `call_soon`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._lock = threading.RLock()  # reentrant: a signal handler may wake the loop
        self._pending = False
        self._closed = False

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        with self._lock:
            if not self._pending and not self._closed:
                self._pending = True
                os.write(self._write, b"!")

    def drain(self) -> None:
        with self._lock:
            self._pending = False
            os.read(self._read, 1)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            os.close(self._read)
            os.close(self._write)


#: Seconds in which a worker that was silent reads which of its tasks have ended, before it stops tasks.
_READ_ENDS_S = 1.0


class CeleryWorkerLoop:
    """The worker of *consumer*. `loop` is set while an event loop runs, the other attributes from the join on."""

    def __init__(self, consumer: "Consumer") -> None:
        self.loop: EventLoop | None = None
        self.job_feed: JobFeed | None = None
        self.leaked_claims: LeakedClaims | None = None
        self._consumer = consumer

    @property
    def in_flight(self) -> InFlightCommands | None:
        # A cold shutdown first counts the jobs that it ends, and reports them afterwards (`AffinityBootstep.stop`).
        loop = self.loop
        return loop.in_flight if loop is not None and loop.is_here and not state.should_terminate else None

    def wake(self) -> bool:
        loop = self.loop
        if loop is not None:
            loop.wake()
        return loop is not None

    def limits_rate_of(self, task: str) -> bool:
        return self._consumer.task_buckets.get(task) is not None

    def start_next(self) -> None:
        assert self.job_feed is not None, "joined"
        if self.goes_on:
            self.job_feed.start_next()

    @property
    def goes_on(self) -> bool:
        """True until the worker is requested to stop. Celery's loop notices a stop in the next iteration."""
        return (state.should_stop is None or state.should_stop is False) and not state.should_terminate  # 0 stops

    def wake_in(self, pause_s: float) -> None:
        self._consumer.hub.call_later(pause_s, lambda: None)

    def deliver(self, claims: list[Claim]) -> None:
        assert self.job_feed is not None, "joined"
        self.job_feed.receive_elsewhere(claims)

    def fence(self, claims: list[HeldClaim]) -> None:
        """Stop the tasks whose jobs other workers have claimed, except acked jobs, which run nowhere else.

        The stop is delayed by a second: a pool process may have ended its task long ago, and ends are read first.
        """
        for claim in claims:
            if claim.request is not None and claim.outcome != ACKED:
                self._consumer.timer.call_after(_READ_ENDS_S, claim.request.fence)
        self.wake()

    def heartbeat(self, *, loop_runs: bool) -> float | None:
        """Free the slots of leaked claims."""
        return None if self.leaked_claims is None else self.leaked_claims.free(loop_runs=loop_runs)
