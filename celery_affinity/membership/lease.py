"""The time for which a worker may be sure that its claims are still its own.

A silence longer than the timeout looks like death: a worker that comes back from one (SIGCONT, a machine that slept, a
network that was cut) has to ask the server before starting anything.
"""

from ..clock import now_s


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
