"""The time for which a worker may be sure that its claims are still its own.

A silence longer than the timeout looks like death: a worker that comes back from one (SIGCONT, a machine that slept, a
network that was cut) has to ask the server before starting anything.

The server's clock, as far as a worker knows it: the only clock by which jobs expire.

Whether a worker's event loop runs, and who tells the server: the guard, or the heartbeats if they notice it sooner.

While the loop stands still, the server gives the worker no job (`lua/functions/heartbeat.lua`).
"""

from ..clock import SECOND_US, now_s
from ..liveness.guard import ForkMarker, Guard
from ..liveness.pulse import Pulse
from ..scheduler.scheduler import Scheduler


class Lease:
    """Holds for *timeout_s* from the moment of the worker's last question that the server has answered."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._asked_at_s = now_s()

    def renew(self, *, asked_at_s: float, timeout_s: float) -> None:
        """Record that the server, asked at *asked_at_s*, took the worker for alive.

        *timeout_s*: the silence that is allowed from now on.
        """
        self._asked_at_s, self._timeout_s = asked_at_s, timeout_s

    @property
    def holds(self) -> bool:
        return now_s() - self._asked_at_s < self._timeout_s

    @property
    def is_fresh(self) -> bool:
        """Whether half of the time is left: a command sent by now arrives before anybody takes the worker for dead."""
        return now_s() - self._asked_at_s < self._timeout_s / 2


class ServerClock:
    """Goes on from the last time that the server told, also while the machine sleeps or its clock is set.

    Any thread may ask. Before the server has told a time, the clock is so far behind that no job has expired.
    """

    def __init__(self) -> None:
        self.set(0)

    def set(self, server_us: int) -> None:
        """Go on from *server_us*, which a reply brought now: this clock is late by the reply's way, and never early."""
        self._offset_us = server_us - round(now_s() * SECOND_US)

    def now_us(self) -> int:
        return self._offset_us + round(now_s() * SECOND_US)


class LoopMonitor:
    """Watches the event loop of *worker*, an id, whose node name is *name*, and has the guard watch it.

    *interval_s*: the time between two heartbeats. *kin* marks the forks of this process; None: the worker has no guard.
    *ends_children*: see `Guard`.
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

    # -- the event loop

    def note_run(self) -> bool:
        """Record that the loop runs. Return whether it stood still before: then `report` is due."""
        stood_still = self._pulse.note_run()
        self._runs_again |= stood_still
        return stood_still

    @property
    def stands_still(self) -> bool:
        return self._pulse.stands_still

    def stands_still_for(self, seconds: float) -> bool:
        """Return whether the loop has not run for more than *seconds*."""
        return self._pulse.age_s > seconds

    def report(self, scheduler: Scheduler) -> bool:
        """Tell the server that the loop stands still, or runs again. Return whether it stands still.

        Raises a redis error if the server does not answer.
        """
        if self._pulse.stands_still:
            scheduler.heartbeat(self._worker, loop_runs=False)
            return True
        if self._runs_again:
            self._runs_again = False  # first: the loop may stand still again meanwhile
            try:
                scheduler.heartbeat(self._worker, loop_runs=True)
            except BaseException:
                self._runs_again = True
                raise
        return False

    # -- the guard

    @property
    def guard_pid(self) -> int | None:
        """The process id of the guard; None if there is none."""
        return None if self._guard is None else self._guard.pid

    def tend_guard(self, scheduler: Scheduler) -> None:
        """Start the guard, or another one if it has died, and say where the server of *scheduler* is."""
        if self._guard is not None:
            self._guard.tend(scheduler)

    def dismiss_guard(self) -> None:
        """End the guard, if there is one: the worker has left."""
        if self._guard is not None:
            self._guard.dismiss()
