"""The worker's lease on its claims, its copy of the server's clock, and the monitor of its event loop."""

from ..clock import SECOND_US, now_s
from ..liveness.guard import ForkMarker, Guard
from ..liveness.pulse import Pulse
from ..scheduler.scheduler import Scheduler


class Lease:
    """Holds for *timeout_s* seconds after the worker sent its last request that the server has answered.

    After a silence longer than the timeout, the server considers the worker dead. A worker that resumes after one
    (SIGCONT, a suspended machine, a network partition) must contact the server before it starts a job.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._requested_at_s = now_s()

    def renew(self, *, asked_at_s: float, timeout_s: float) -> None:
        """Record that the server, in reply to a request sent at *asked_at_s*, considered the worker alive.

        *timeout_s* is the silence that is allowed from now on.
        """
        self._requested_at_s, self._timeout_s = asked_at_s, timeout_s

    @property
    def holds(self) -> bool:
        return now_s() - self._requested_at_s < self._timeout_s

    @property
    def is_fresh(self) -> bool:
        """True if half of the time remains: a command sent by now arrives before the worker is considered dead."""
        return now_s() - self._requested_at_s < self._timeout_s / 2


class ServerClock:
    """The server's clock as far as the worker knows it. Jobs expire only by this clock.

    It continues from the server's last timestamp, even if the machine sleeps or its clock is set. Before the first
    timestamp, it is so far behind that no job has expired. Any thread can read it.
    """

    def __init__(self) -> None:
        self.set(0)

    def set(self, server_us: int) -> None:
        """Continue from *server_us*, which has just arrived. The clock lags by the reply's travel time, never leads."""
        self._offset_us = server_us - round(now_s() * SECOND_US)

    def now_us(self) -> int:
        return self._offset_us + round(now_s() * SECOND_US)


class LoopMonitor:
    """Watches the event loop of the worker with id *worker* and node name *name*, and makes the guard watch it too.

    While the loop is stalled, the server gives the worker no job (`lua/functions/worker.lua`). Either the guard or
    the heartbeats report the stall, whichever notices it first.

    Args:
        interval_s: Seconds between two heartbeats.
        kin: Marks the forks of this process. None if the worker has no guard.
        ends_children: See `Guard`.
    """

    def __init__(
        self, worker: str, name: str, interval_s: float, *, kin: ForkMarker | None, ends_children: bool
    ) -> None:
        self._worker = worker
        self._pulse = Pulse()
        self._runs_again = False
        self._guard: Guard | None = None
        if kin is not None:
            self._guard = Guard(worker, name, interval_s, pulse=self._pulse, kin=kin, ends_children=ends_children)

    def note_run(self) -> bool:
        """Record that the loop runs. Return True if it was stalled before, so that `report` is due."""
        was_stalled = self._pulse.note_run()
        self._runs_again |= was_stalled
        return was_stalled

    @property
    def stands_still(self) -> bool:
        return self._pulse.stands_still

    def stands_still_for(self, seconds: float) -> bool:
        """Return True if the loop has not run for more than *seconds*."""
        return self._pulse.age_s > seconds

    def report(self, scheduler: Scheduler) -> bool:
        """Report to the server that the loop is stalled, or that it runs again. Return True if it is stalled.

        Raises a redis error if the server does not answer.
        """
        if self._pulse.stands_still:
            scheduler.heartbeat(self._worker, loop_runs=False)
            return True
        if self._runs_again:
            self._runs_again = False  # first, because the loop can stall again during the invocation
            try:
                scheduler.heartbeat(self._worker, loop_runs=True)
            except BaseException:
                self._runs_again = True
                raise
        return False

    @property
    def guard_pid(self) -> int | None:
        """Process id of the guard, or None without a guard."""
        return None if self._guard is None else self._guard.pid

    def tend_guard(self, scheduler: Scheduler) -> None:
        """Start or restart the guard if necessary, and tell it the address of *scheduler*'s server."""
        if self._guard is not None:
            self._guard.tend(scheduler)

    def dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.dismiss()
