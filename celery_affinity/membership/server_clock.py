"""The server's clock, as far as a worker knows it: the only clock by which jobs expire."""

from ..clock import SECOND_US, now_s


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
