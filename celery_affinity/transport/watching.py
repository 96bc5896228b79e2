"""An event loop that is not told again what it knows.

At each turn kombu's Redis transport adds all its connections to the loop, which has the system look for each: a
twentieth of what a worker does for a short task. Among them may be some that are closed, and whose numbers others have
by now.
"""

from collections.abc import Callable, Iterable
from typing import Any


class WatchedOnce:
    """*hub*, a ``kombu.asynchronous.Hub``, as a transport sees it whose connections are *sockets*.

    `add_reader` does nothing if it would change nothing, or if there is no such connection.
    """

    def __init__(self, hub: Any, sockets: Callable[[], Iterable[Any]]) -> None:
        self._hub, self._sockets = hub, sockets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hub, name)

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> None:
        is_news = self._hub.readers.get(fd) != (callback, args)
        if is_news and any(each.fileno() == fd for each in self._sockets()):
            self._hub.add_reader(fd, callback, *args)
