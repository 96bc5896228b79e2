"""An event loop that is not asked to watch a connection which it already watches.

At each iteration kombu's Redis transport adds all its connections to the loop, which makes a system call for each: a
twentieth of a worker's time for a short task. Some of these connections are closed, and their file numbers may belong
to other connections by now.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from kombu.asynchronous.hub import Hub


class _Connection(Protocol):
    def fileno(self) -> int: ...


class WatchedOnce:
    """A ``kombu.asynchronous.Hub``, seen by a transport whose open connections *sockets* returns.

    `add_reader` does nothing if it would change nothing, or if no open connection has that file number.
    """

    def __init__(self, hub: Hub, sockets: Callable[[], Iterable[_Connection]]) -> None:
        self._hub, self._sockets = hub, sockets

    def __getattr__(self, name: str) -> object:
        return getattr(self._hub, name)

    def add_reader(self, fd: int, callback: Callable[..., object], *args: object) -> None:
        is_news = self._hub.readers.get(fd) != (callback, args)
        if is_news and any(each.fileno() == fd for each in self._sockets()):
            self._hub.add_reader(fd, callback, *args)
