"""``celery -A proj affinity metrics``: metrics for Prometheus, from a process of their own or once."""

import signal
import socket
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..observe import cohorts
from ..observe.exposition import CONTENT_TYPE
from ..observe.metric_list import as_text
from ..observe.observer import Observer
from ..transport.reach import fleet_on
from .broker import connection_of, fleet_of

#: Limits of connections at a time, each with a thread; of bytes of a request; and of seconds until all of it is there.
_MOST_CONNECTIONS, _MOST_BYTES, _REQUEST_S = 50, 65_536, 10


@click.command(cls=CeleryCommand)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on. Clients need no login.")
@click.option(
    "--port",
    default=9810,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Port to listen on; 0 takes a free one.",
)
@click.option("--once", is_flag=True, help="Print the metrics and exit.")
@click.pass_context
@handle_preload_options
def metrics(ctx: click.Context, host: str, port: int, once: bool) -> None:
    """Serve metrics for Prometheus at /metrics. Ctrl-C or SIGTERM ends it.

    The metrics are the same as those of `celery affinity web` and Flower. They contain no names of tasks, keys or jobs.
    """
    if once:
        with fleet_of(ctx) as fleet:
            click.echo(as_text(cohorts.metrics(fleet)), nl=False)
        return
    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    with connection_of(ctx) as connection:
        observer = Observer(connection, fleet_on, "celery affinity metrics")
        try:
            server = _Server((host, port), _handler(observer))
        except OSError as exc:
            raise click.ClickException(f"cannot listen at {host}:{port}: {exc.strerror or exc}") from exc
        threading.Thread(target=server.serve_forever, daemon=True).start()
        click.echo(f"metrics ready on http://{host}:{server.server_address[1]}/metrics")
        ended.wait()
        server.shutdown()
        server.server_close()
        observer.close()


class _Server(ThreadingHTTPServer):
    """A server that closes a connection for which it has no thread."""

    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[Any] = set()
        super().__init__(address, handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        is_accepted = len(self._open) < _MOST_CONNECTIONS
        if is_accepted:
            self._open.add(request)
        return is_accepted

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._open.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that ends its connection is no error
            super().handle_error(request, client_address)


class _Request:
    """The bytes of a request, which end early if there are too many: no header matters here."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file, self._left = file, _MOST_BYTES

    def readline(self, size: int = -1) -> bytes:
        line = self._file.readline(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()


def _handler(observer: Observer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S  # of one read: a client that says nothing holds a thread no longer

        def setup(self) -> None:
            super().setup()
            self.rfile = _Request(self.rfile)  # type: ignore[assignment]  # it has what http.server uses
            self._end = threading.Timer(_REQUEST_S, self._close)  # a client may send a byte now and then
            self._end.daemon = True
            self._end.start()

        def _close(self) -> None:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RD)

        def finish(self) -> None:
            self._end.cancel()
            super().finish()

        def do_GET(self) -> None:  # the name is http.server's
            path = self.path.partition("?")[0]
            if path not in ("/", "/metrics"):
                self.send_error(404, "there is /metrics")
                return
            body = as_text(observer.read_now()).encode(errors="replace")
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # the name is http.server's
            """Say nothing: Prometheus asks every few seconds."""

    return Handler
