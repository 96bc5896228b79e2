"""An event loop that is not told again what it knows.

At each turn kombu's Redis transport adds all its connections to the loop, which has the system look for each: a
twentieth of what a worker does for a short task.
"""

from collections.abc import Callable
from typing import Any


class WatchedOnce:
    """*hub*, a ``kombu.asynchronous.Hub``; `add_reader` does nothing if it would change nothing."""

    def __init__(self, hub: Any) -> None:
        self._hub = hub

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hub, name)

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> None:
        if self._hub.readers.get(fd) != (callback, args):
            self._hub.add_reader(fd, callback, *args)
