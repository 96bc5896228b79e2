"""Whether a worker's event loop runs, and who tells the server: the guard, or the heartbeats if they notice it sooner.

While the loop stands still, the server gives the worker no job (`lua/arrows/heartbeat.lua`).
"""

from ..guard.guard import Guard, Kin
from ..guard.pulse import Pulse
from ..server.scheduler import Scheduler


class LoopWatch:
    """Watches the event loop of *worker*, an id, whose node name is *name*, and has the guard watch it.

    *interval_s*: the time between two heartbeats. *kin* marks the forks of this process; None: the worker has no guard.
    *ends_children*: see `Guard`.
    """

    def __init__(self, worker: str, name: str, interval_s: float, *, kin: Kin | None, ends_children: bool) -> None:
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
