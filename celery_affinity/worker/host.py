"""Celery's worker, as its membership in the fleet sees it (`Host`): the event loop, and what happens there to jobs."""

from typing import TYPE_CHECKING, Protocol

from celery.worker import state

from ..membership.held import ACKED, Held
from ..server.connections.in_flight import InFlight
from ..server.replies import Claim
from .event_loop import Loop
from .strays import Strays

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

#: Time, s, for a worker that comes back from a silence to read which of its tasks have ended.
_CATCHES_UP_S = 1.0


class _Receiver(Protocol):
    def receive_elsewhere(self, claims: list[Claim]) -> None: ...
    def start_next(self) -> None: ...


class WorkerHost:
    """The worker of *consumer*. `loop` is set while an event loop runs, `following` and `strays` from the join on."""

    def __init__(self, consumer: "Consumer") -> None:
        self.loop: Loop | None = None
        self.following: _Receiver | None = None
        self.strays: Strays | None = None
        self._consumer = consumer

    @property
    def in_flight(self) -> InFlight | None:
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
        assert self.following is not None, "joined"
        if self.goes_on:
            self.following.start_next()

    @property
    def goes_on(self) -> bool:
        """Whether nobody has told the worker to stop: Celery's loop sees that in its next iteration."""
        return (state.should_stop is None or state.should_stop is False) and not state.should_terminate  # 0 stops

    def wake_in(self, pause_s: float) -> None:
        self._consumer.hub.call_later(pause_s, lambda: None)

    def deliver(self, claims: list[Claim]) -> None:
        assert self.following is not None, "joined"
        self.following.receive_elsewhere(claims)

    def fence(self, claims: list[Held]) -> None:
        """Stop the tasks whose jobs other workers have by now. The task of an acked job goes on: nobody else runs it.

        The stop comes a second later: a pool process may have ended its task long ago, and the ends are read first.
        """
        for held in claims:
            if held.request is not None and held.outcome != ACKED:
                self._consumer.timer.call_after(_CATCHES_UP_S, held.request.fence)
        self.wake()

    def heartbeat(self, *, loop_runs: bool) -> float | None:
        """Free slots of claims that run nowhere."""
        return None if self.strays is None else self.strays.free(loop_runs=loop_runs)
