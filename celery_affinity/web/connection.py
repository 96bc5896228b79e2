"""A client's connection to `celery affinity web`: uvicorn's, with an end for clients that stop in the middle.

uvicorn waits without an end for the head of a request, and for a client that reads no reply. Such clients would use up
all connections.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Longest time, s, from the beginning of a connection, or from the first byte after a reply, to the end of a head.
HEAD_S = 10.0

#: Longest time, s, for which a client reads nothing of what waits for it.
READ_S = 60.0


class Connection(HttpToolsProtocol):
    """A connection that ends unless its next head is complete in time, and its client reads what it asked for.

    The work for a request has no limit here.
    """

    _head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # writing pauses while anything waits for the client
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
        self._has_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A blank line, or the rest of a body that was answered already, has ended uvicorn's timeout of an idle
        # connection, and begins no request.
        if self._head is None and self.cycle is not None and self.cycle.response_complete:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._has_head()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        self._has_read()
        super().resume_writing()

    def _await_reading(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(READ_S, self._end_unless_read, waiting)

    def _end_unless_read(self, waited: int) -> None:
        if self.transport.get_write_buffer_size() < waited:
            self._await_reading()
        else:
            self.transport.abort()

    def _has_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_S, self.transport.close)

    def _has_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
