"""A worker's part in kombu's event loop: a call at each iteration, a way to wake it, a connection with replies.

Celery's worker, as its membership in the fleet sees it (`Host`): the event loop, and what happens there to jobs.
"""

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from celery.worker import state
from kombu.asynchronous.hub import Hub

from ..broker.inflight import InFlightCommands
from ..leases.held_claim import ACKED, HeldClaim
from ..scheduler.messages import Claim
from .request_end import LeakedClaims

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer


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
        self._turns_anyway = False
        self._thread = threading.get_ident()
        self._waker = _Waker()
        in_flight.on_open, in_flight.on_close = self.watch, self._unwatch
        hub.add_reader(self._waker.fileno(), self._waker.drain)
        hub.on_tick.add(self._tick)

    @property
    def is_here(self) -> bool:
        """Whether the loop runs in the thread that asks."""
        return threading.get_ident() == self._thread

    def wake(self) -> None:
        """Have the loop iterate soon; from any thread."""
        if not self._turns_anyway and not self.in_flight.is_under_way:
            self._waker.wake()

    def close(self) -> None:
        """Leave the hub. Commands in flight get no reply any more."""
        self._hub.on_tick.discard(self._tick)
        self._hub.remove(self._waker.fileno())
        self._waker.close()
        self.in_flight.close()

    def _tick(self) -> None:
        self._turns_anyway = False  # before the news is read: later news wakes the loop
        if self.in_flight.is_unread:
            self._reply()  # even if something else took the place of the connection in the hub
        self._on_tick()
        self.watch()

    def _reply(self) -> None:
        self._turns_anyway = True  # the next tick is near
        if self.in_flight.is_under_way:
            self._on_reply()
        else:
            self.in_flight.close()  # as the server did
        self.watch()

    def watch(self) -> None:
        """Watch the present connection, if there is one."""
        socket = self.in_flight.socket
        if socket is self._watched and (socket is None or self._is_in_the_hub):
            return
        self._unwatch()
        self._watched = socket
        if socket is not None:
            self._watched_fileno = socket.fileno()
            self._hub.add_reader(self._watched_fileno, self._reply)

    def _unwatch(self) -> None:
        if self._is_in_the_hub:
            self._hub.remove(self._watched_fileno)
        self._watched, self._watched_fileno = None, -1

    @property
    def _is_in_the_hub(self) -> bool:
        """Whether the hub has the connection: others may close a file with that number, and not tell the hub."""
        return bool(self._hub.readers.get(self._watched_fileno) == (self._reply, ()))


class _Waker:
    """Ends the wait of an event loop, from any thread: kombu's own call_soon does so only in its newest versions."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._lock = threading.RLock()  # reentrant: a signal's handler may wake the loop
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


#: Time, s, for a worker that comes back from a silence to read which of its tasks have ended.
_CATCHES_UP_S = 1.0


class _Receiver(Protocol):
    def receive_elsewhere(self, claims: list[Claim]) -> None: ...
    def start_next(self) -> None: ...


class CeleryWorkerLoop:
    """The worker of *consumer*. `loop` is set while an event loop runs, `following` and `strays` from the join on."""

    def __init__(self, consumer: "Consumer") -> None:
        self.loop: EventLoop | None = None
        self.job_feed: _Receiver | None = None
        self.leaked_claims: LeakedClaims | None = None
        self._consumer = consumer

    @property
    def in_flight(self) -> InFlightCommands | None:
        # The jobs that a cold shutdown ends are counted first, and told after that (`AffinityStep.stop`).
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
        """Whether nobody has told the worker to stop: Celery's loop sees that in its next iteration."""
        return (state.should_stop is None or state.should_stop is False) and not state.should_terminate  # 0 stops

    def wake_in(self, pause_s: float) -> None:
        self._consumer.hub.call_later(pause_s, lambda: None)

    def deliver(self, claims: list[Claim]) -> None:
        assert self.job_feed is not None, "joined"
        self.job_feed.receive_elsewhere(claims)

    def fence(self, claims: list[HeldClaim]) -> None:
        """Stop the tasks whose jobs other workers have by now. The task of an acked job goes on: nobody else runs it.

        The stop comes a second later: a pool process may have ended its task long ago, and the ends are read first.
        """
        for held in claims:
            if held.request is not None and held.outcome != ACKED:
                self._consumer.timer.call_after(_CATCHES_UP_S, held.request.fence)
        self.wake()

    def heartbeat(self, *, loop_runs: bool) -> float | None:
        """Free slots of claims that run nowhere."""
        return None if self.leaked_claims is None else self.leaked_claims.free(loop_runs=loop_runs)
