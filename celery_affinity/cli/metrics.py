"""``celery -A proj affinity metrics``: metrics for Prometheus, from a process of their own or once."""

import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..observe import cohorts
from ..observe.exposition import CONTENT_TYPE
from ..observe.metric_list import as_text
from ..observe.observer import Observer
from ..transport.reach import fleet_on
from .broker import connection_of, fleet_of


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
            server = ThreadingHTTPServer((host, port), _handler(observer))
        except OSError as exc:
            raise click.ClickException(f"cannot listen at {host}:{port}: {exc.strerror or exc}") from exc
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        click.echo(f"metrics ready on http://{host}:{server.server_address[1]}/metrics")
        ended.wait()
        server.shutdown()
        server.server_close()
        observer.close()


def _handler(observer: Observer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # s: a client that says nothing holds a thread no longer

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
