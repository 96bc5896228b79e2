"""Serve the HTTP interface (``celery affinity web``), and limit a client's resources before its token is checked.

uvicorn waits forever for the head of a request, and stores the head regardless of its size. `HttpConnection`, a
subclass of uvicorn's protocol, limits the size, number and duration of everything in a request except its body. `auth`
limits bodies.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable

import uvicorn
from celery import Celery
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ..errors import SettingError
from . import asgi
from .auth import VARIABLE, is_loopback, read_tokens
from .replies import RefusedError, error_reply

#: Timeout for a complete head, in seconds. It starts with the connection, or with the first byte after a reply.
HEAD_S = 10.0

#: Maximum bytes of the target in a request line. An HTTP worker can list 1,000 fencing tokens in it.
MAX_TARGET_BYTES = 32_768

#: Maximum bytes of a head, of the data between two chunks of a body, and of the data after the last chunk.
MAX_HEAD_BYTES = 65_536

#: Maximum number of headers per request.
MAX_HEADERS = 100

#: Maximum number of pipelined requests: requests that a client sends before it has received earlier replies.
MAX_PIPELINED = 16

#: Bytes per call of the parser. Heads are measured with this precision.
_SLICE = 16_384

#: Maximum bytes that are read and discarded after a refused request. If the connection were reset immediately, a client
#: that is still sending would lose the reply.
_MAX_DROPPED = 1_000_000


class HttpConnection(HttpToolsProtocol):
    """A connection that is closed unless its next head is small and arrives in time. Running requests have no limit."""

    _head: asyncio.TimerHandle | None = None
    _refusal: RefusedError | None = None
    _is_refused = False
    _has_whole_head = False
    _bytes_without_body = 0
    _dropped = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._await_head()
        limit = self.limit_concurrency
        if limit is not None and len(self.connections) >= limit:  # from `limit` on, uvicorn refuses all requests
            self.connections.discard(self)
            self._refuse(
                RefusedError(503, f"the server already has {limit - 1:,} connections: try again later"), lingers=False
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _SLICE):
            if self._is_refused or self.transport.is_closing():
                self._drop(len(data) - start)
                return
            self._parse(data[start : start + _SLICE])
        # A blank line, or the rest of a body that was answered already, has ended uvicorn's timeout of an idle
        # connection, and begins no request.
        if self._head is None and self.cycle is not None and self.cycle.response_complete:
            self._await_head()

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        self._bytes_without_body += len(data)
        if self._bytes_without_body > MAX_HEAD_BYTES:
            self._refuse(RefusedError(431, f"the head of a request must have {MAX_HEAD_BYTES:,} bytes at most"))

    def on_message_begin(self) -> None:
        self._has_whole_head = False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            self._fail(RefusedError(414, f"the target of a request must have {MAX_TARGET_BYTES:,} bytes at most"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_whole_head:  # a trailer after a chunked body, which the application does not use
            return
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._fail(RefusedError(431, f"a request must have {MAX_HEADERS} headers at most"))

    def on_headers_complete(self) -> None:
        self._has_head()
        self._has_whole_head, self._bytes_without_body = True, 0
        if len(self.pipeline) >= MAX_PIPELINED:
            self._fail(RefusedError(400, f"a client must wait for a reply after {MAX_PIPELINED} requests"))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._bytes_without_body = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request whose parsing failed, because it is not HTTP or a callback called `_fail`."""
        self._refuse(self._refusal or RefusedError(400, msg))

    def _fail(self, refusal: RefusedError) -> None:
        """Abort parsing from a parser callback. Raises *refusal*."""
        self._refusal = refusal
        raise refusal

    def _refuse(self, refusal: RefusedError, *, lingers: bool = True) -> None:
        """Send the reply unless another reply is being sent, and close the connection.

        If it *lingers*, the client can first finish sending and read the reply.
        """
        if self._is_refused:
            return
        self._is_refused = True
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        reply = error_reply(refusal.status, str(refusal), {"Connection": "close"})
        head = b"".join(b"%b: %b\r\n" % header for header in reply.raw_headers)
        self.transport.write(STATUS_LINE[refusal.status] + head + b"\r\n" + bytes(reply.body))
        if lingers and self.transport.can_write_eof():
            self.transport.write_eof()
            if self._head is None:
                self._await_head()
        else:
            self.transport.close()

    def _drop(self, number: int) -> None:
        self._dropped += number
        if self._dropped > _MAX_DROPPED:
            self.transport.abort()

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_S, self.transport.close)

    def _has_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


#: Maximum seconds for which requests in progress delay the exit.
_EXIT_S = 3

#: Seconds for which an idle connection is kept, and maximum number of connections.
_IDLE_S, _MAX_CONNECTIONS = 30, 2000


def serve(
    app: Celery,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], object],
    token_file: str | None = None,
    read_only: bool = False,
    allow: Iterable[str] = ("*",),
    names: Iterable[str] = (),
    traces: str | os.PathLike[str] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. *on_ready* is called with the URL. Raises SettingError and OSError."""
    tokens = read_tokens(token_file)
    if tokens is None and not (host == "localhost" or is_loopback(host)):
        raise SettingError(f"--host {host} admits other machines: --token-file or ${VARIABLE} must name their tokens")
    wildcard = host in ("", "0.0.0.0", "::")  # noqa: S104  # compared, not bound
    names = [*names, *([] if wildcard else [host])]
    site = asgi(app, tokens=tokens, read_only=read_only, allow=allow, names=names, traces=traces)
    config = uvicorn.Config(
        site,
        host=host,
        port=port,
        log_level="critical",  # `AuthMiddleware` logs errors; here, each request that the exit interrupts is one
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=HttpConnection,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_EXIT_S,
    )
    with socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
    ) as listening:
        # Connections inherit this option; asyncio only sets it for its own sockets. A reply is two writes, and without
        # the option the second would wait 40 ms for the client's ack of the first.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shown = f"[{host}]" if ":" in host else host or "0.0.0.0"  # noqa: S104
        on_ready(f"http://{shown}:{listening.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listening])
