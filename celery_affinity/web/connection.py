"""A client's connection to `celery affinity web`: uvicorn's, with an end for clients that do not finish a head.

uvicorn waits without an end for the head of a request. Clients that send half of one would use up all connections.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Longest time, s, from the beginning of a connection, or from the first byte after a reply, to the end of a head.
HEAD_S = 10.0


class HttpConnection(HttpToolsProtocol):
    """A connection that is closed unless its next head is complete in time. Requests under way have no limit here."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
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

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_S, self.transport.close)

    def _has_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
