"""What the server's clock says, as far as a worker knows: the only clock by which jobs expire."""

from ..clock import now_s


class ServerClock:
    """Goes on from what the server said last, whatever is done to this host's clock, and while the machine sleeps.

    Any thread may ask. Until the server has said something, it is so early that nothing has expired.
    """

    def __init__(self) -> None:
        self.set(0)

    def set(self, server_us: int) -> None:
        """Note what a reply that has just come says. It was on its way: this clock is late by as much, never early."""
        self._ahead_us = server_us - round(now_s() * 1e6)

    def now_us(self) -> int:
        return self._ahead_us + round(now_s() * 1e6)
