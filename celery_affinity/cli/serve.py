"""``celery -A proj affinity dispatcher``, ``web``, ``metrics`` and ``up``: commands that run until a signal ends them.

`up` runs a server, the HTTP interface and a worker in one command, to try an app.
"""

import inspect
import json
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from pathlib import Path
from socket import gethostname
from typing import Any, TypeVar

import click
from celery import Celery
from celery.bin.base import LOG_LEVEL, CommaSeparatedList
from celery.concurrency import get_implementation
from celery.utils.nodenames import default_nodename, host_format
from celery.worker import state
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..background import PeriodicThread
from ..check.facts import gather_app
from ..dispatcher.dispatcher import SHORT_PAUSE_S, Dispatcher
from ..dispatcher.ingest import Ingest
from ..dispatcher.recurring import RecurringCalls
from ..embedded.server import EmbeddedServer
from ..errors import AffinityError
from ..log_limit import limited_logger
from ..publishing.app_config import settings_of, uses_affinity_transport
from ..reports import cohorts
from ..reports.flower import FleetObserver
from ..reports.metrics import CONTENT_TYPE, metrics_text
from ..results import chords
from ..results.reporter import ResultReporter
from ..results.unrun_jobs import UnrunJobReporter
from ..scheduler.scheduler import Scheduler
from ..settings.cohorts import DEFAULT
from ..transport.app_api import channel_on, fleet_on
from ..versions import install_with
from .framework import RETRY_S, check_app_conf, cohorts_of_context, command, connection_of_context, scheduler_of_context

logger = limited_logger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

_LOGLEVEL = click.option(
    "--loglevel", "-l", default="WARNING", show_default=True, type=LOG_LEVEL, help="Lowest level to log."
)


def _port(default: int, help: str) -> Callable[[F], F]:
    return click.option("--port", default=default, show_default=True, type=click.IntRange(0, 65_535), help=help)


def _event_of_signals() -> threading.Event:
    """Return an event that Ctrl-C and SIGTERM set."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    return ended


def _import_serve() -> Callable[..., None]:
    """Return `web.server.serve`. Raises ClickException without the extra `web`."""
    try:
        from ..web.server import serve  # not at the top: other commands do not need the extra
    except ImportError as exc:
        raise click.ClickException(f"{exc}: {install_with('web')}") from exc
    return serve


@command("dispatcher")
@_LOGLEVEL
def dispatcher(ctx: click.Context, loglevel: int) -> None:
    """Run a dispatcher without a worker, for fleets that scale to zero workers. Ctrl-C or SIGTERM ends it."""
    ended = _event_of_signals()
    app = ctx.obj.app
    check_app_conf(app)
    app.log.setup_logging_subsystem(loglevel=loglevel)
    app.loader.import_default_modules()  # the dispatcher reports the ends of these tasks
    chords.install_chord_parts()
    try:
        settings_of(app)  # checked now, because every tick reads the settings
    except AffinityError as exc:
        raise click.ClickException(str(exc)) from exc
    hostname = f"dispatcher@{gethostname()}"
    with (
        scheduler_of_context(ctx, patient_until=ended) as scheduler,
        app.connection_for_write() as connection,
        app.connection_for_write() as broker,
    ):
        events = app.events.Dispatcher(connection, hostname=hostname, enabled=bool(app.conf.worker_send_task_events))
        reporter = ResultReporter(app, hostname, lambda: events)
        default = _CohortDispatcher(app, reporter, scheduler.keys.cohort, lambda: scheduler)
        default.open()
        names = list(settings_of(app).cohorts) if scheduler.keys.cohort == DEFAULT else []
        others = []
        if names:
            channel = channel_on(broker, app.conf.broker_transport)
            channel.scheduler.load()
            others = [_CohortDispatcher(app, reporter, name, partial(channel.scheduler_of, name)) for name in names]
        for other in others:
            other.begin()
        click.echo(f"dispatcher ready on {app.connection_for_write().as_uri()}")
        ended.wait()
        for running_dispatcher in (default, *others):
            running_dispatcher.stop()


class _CohortDispatcher:
    """The dispatcher of one cohort, in a dedicated thread. *reach* returns its scheduler, once the server answers."""

    def __init__(self, app: Celery, reporter: ResultReporter, cohort: str, reach: Callable[[], Scheduler]) -> None:
        self._app, self._reporter, self._reach = app, reporter, reach
        self._cohort = cohort
        self._loop: Dispatcher | None = None
        self._opening = PeriodicThread(f"affinity-opens-{cohort}", self._try_to_open, RETRY_S)
        self._is_opening = False

    def begin(self) -> None:
        """Start when the server answers, without waiting: a cohort that is down must not delay the others."""
        self._is_opening = True
        self._opening.start()
        self._opening.wake()

    def open(self) -> None:
        """Start. Raises the errors of a server that does not answer."""
        scheduler = self._reach()
        scheduler.load()
        app, reporter = self._app, self._reporter
        self._loop = Dispatcher(
            scheduler, UnrunJobReporter(reporter), Ingest(app), RecurringCalls(app, reporter), pause_s=SHORT_PAUSE_S
        )
        self._loop.start()

    def _try_to_open(self) -> None:
        if self._loop is not None:
            return
        try:
            self.open()
        except (RedisError, OperationalError, OSError) as exc:
            logger.warning("The server of cohort %r does not answer the dispatcher: %s", self._cohort, exc)

    def stop(self) -> None:
        if self._is_opening:
            self._opening.stop()
        if self._loop is not None:
            self._loop.stop()


@command("web")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@_port(5556, "Port to listen on; 0 takes a free one.")
@click.option(
    "--token-file",
    metavar="FILE",
    help="File with one line for each token: role (read, submit, admin or worker), a space, and the token.",
)
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option(
    "--allow",
    multiple=True,
    default=["*"],
    metavar="PATTERN",
    help="Tasks that can be submitted; * stands for anything. Can be repeated.",
)
@click.option(
    "--name", "names", multiple=True, metavar="HOST", help="Name by which clients reach this host. Can be repeated."
)
@click.option(
    "--traces",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Directory with traces that `lab record` wrote: the page shows them and simulates other slots.",
)
def web(
    ctx: click.Context,
    host: str,
    port: int,
    token_file: str | None,
    read_only: bool,
    allow: tuple[str, ...],
    names: tuple[str, ...],
    traces: str | None,
) -> None:
    """Serve jobs, types and workers over HTTP: needs the extra `web`.

    Without tokens, only clients on this machine get an answer, and they may do everything.
    """
    serve = _import_serve()
    check_app_conf(ctx.obj.app)
    try:
        serve(
            ctx.obj.app,
            host=host,
            port=port,
            token_file=token_file,
            read_only=read_only,
            allow=allow,
            names=names,
            traces=traces,
            on_ready=lambda url: click.echo(f"web ready on {url}"),
        )
    except AffinityError as exc:
        raise click.ClickException(str(exc)) from exc
    except OSError as exc:
        raise click.ClickException(f"cannot listen at {host}:{port}: {exc.strerror or exc}") from exc


#: Maximum number of simultaneous connections (one thread per connection), bytes per request, and seconds per request.
_MAX_CONNECTIONS, _MAX_BYTES, _REQUEST_S = 50, 65_536, 10


@command("metrics")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on. Clients need no login.")
@_port(9810, "Port to listen on; 0 takes a free one.")
@click.option("--once", is_flag=True, help="Print the metrics and exit.")
def metrics(ctx: click.Context, host: str, port: int, once: bool) -> None:
    """Serve metrics for Prometheus at /metrics. Ctrl-C or SIGTERM ends it.

    `celery affinity web` and Flower serve the same metrics. They contain no names of tasks, keys or jobs.
    """
    if once:
        with cohorts_of_context(ctx) as fleet:
            click.echo(metrics_text(cohorts.metrics_of_all(fleet)), nl=False)
        return
    ended = _event_of_signals()
    with connection_of_context(ctx) as connection:
        observer = FleetObserver(connection, fleet_on, "celery affinity metrics")
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
    """A server that closes connections beyond _MAX_CONNECTIONS."""

    daemon_threads = True
    request_queue_size = _MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[Any] = set()
        super().__init__(address, handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        is_accepted = len(self._open) < _MAX_CONNECTIONS
        if is_accepted:
            self._open.add(request)
        return is_accepted

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._open.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that closes its connection is not an error
            super().handle_error(request, client_address)


class _Request:
    """A reader for one request that stops after _MAX_BYTES. The headers cut off are not needed."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file, self._remaining_bytes = file, _MAX_BYTES

    def readline(self, size: int = -1) -> bytes:
        line = self._file.readline(min(size, self._remaining_bytes) if size >= 0 else self._remaining_bytes)
        self._remaining_bytes -= len(line)
        return line

    def close(self) -> None:
        self._file.close()


def _handler(observer: FleetObserver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S  # per read: a silent client occupies a thread no longer

        def setup(self) -> None:
            super().setup()
            self.rfile = _Request(self.rfile)  # type: ignore[assignment]  # it has the methods that http.server calls
            self._end = threading.Timer(_REQUEST_S, self._close)  # for a client that sends single bytes
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
            body = metrics_text(observer.read_now()).encode(errors="replace")
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # the name is http.server's
            """Log nothing: Prometheus sends a request every few seconds."""

    return Handler


#: Maximum time until the HTTP interface listens, in seconds.
_LISTENS_WITHIN_S = 15.0


@command("up")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path, file_okay=False), help="Directory in which to keep the data."
)
@_port(5556, "Port of the page; 0 takes a free one.")
@click.option("--queues", "-Q", type=CommaSeparatedList(), help="Types that the worker serves.  [default: all]")
@click.option(
    "--concurrency", "-c", default=4, show_default=True, type=click.IntRange(1, 1000), help="Threads of the worker."
)
@_LOGLEVEL
def up(
    ctx: click.Context, directory: Path | None, port: int, queues: list[str] | None, concurrency: int, loglevel: str
) -> None:
    """Try an app without a server of your own: run a server, the page and a worker. Not for production.

    Needs the extras `embedded` and `web`. Ctrl-C or SIGTERM ends all three. Without --dir, the data are
    deleted.
    """
    app: Celery = ctx.obj.app
    if not uses_affinity_transport(app.conf.broker_transport):
        raise click.ClickException('app.conf.broker_transport must be "celery_affinity:Transport"')
    try:
        directory = directory and directory.resolve()
        options = () if directory is None else ("--appendonly", "yes")
        with EmbeddedServer(directory=directory, options=options) as server:
            _use_server(server.url)
            types = queues or sorted({app.conf.task_default_queue, *gather_app(app).declared})
            url = _serve_web(app, port)
            click.echo(_welcome(app, url, server.url, types, directory))
            ctx.exit(_run_worker(app, types, concurrency, loglevel))
    except AffinityError as exc:
        raise click.ClickException(str(exc)) from exc


def _use_server(url: str) -> None:
    """Make the app use the server at *url* as broker and result backend, regardless of its app.conf."""
    os.environ["CELERY_BROKER_URL"] = os.environ["CELERY_RESULT_BACKEND"] = url  # take precedence over app.conf
    for name in ("CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"):
        os.environ[name] = url


def _serve_web(app: Celery, port: int) -> str:
    """Serve the HTTP interface from a thread. Return its URL."""
    serve = _import_serve()
    ready, urls, errors = threading.Event(), list[str](), list[BaseException]()

    def run() -> None:
        try:
            serve(app, host="127.0.0.1", port=port, on_ready=on_ready)
        except BaseException as exc:
            errors.append(exc)
            ready.set()

    def on_ready(url: str) -> None:
        urls.append(url)
        ready.set()

    threading.Thread(target=run, name="affinity-web", daemon=True).start()
    ready.wait(_LISTENS_WITHIN_S)
    if not urls:
        why = str(errors[0]) if errors else "no answer"
        raise click.ClickException(f"cannot listen at 127.0.0.1:{port}: {why}; --port takes another one, 0 a free one")
    return urls[0]


def _run_worker(app: Celery, types: list[str], concurrency: int, loglevel: str) -> int:
    """Run a worker until a signal ends it, and return its exit code: 0 after Ctrl-C, where Celery has 1."""
    worker = app.Worker(
        hostname=host_format(default_nodename("up@%h")),
        pool_cls=get_implementation("threads"),
        concurrency=concurrency,
        loglevel=loglevel,
        queues=types,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
    )
    worker.start()
    is_regular_end = state.should_stop is not None and not state.should_terminate
    return 0 if is_regular_end else int(worker.exitcode or 0)


def _welcome(app: Celery, url: str, server: str, types: list[str], directory: Path | None) -> str:
    kept = "and nothing is kept" if directory is None else f"the data are in {directory}"
    return (
        f"up: the page is at {url}, the server at {server}; one worker serves {', '.join(types)}\n\n"
        f"Submit a job:\n\n  {_first_call(app, url)}\n\n"
        f"Ctrl-C ends all of it, {kept}. This is for the first minutes, not for production: there, run a server of\n"
        "your own, and `celery worker` and `celery affinity web` as processes; not a line of the app has to change."
    )


def _first_call(app: Celery, url: str) -> str:
    names = sorted(name for name in app.tasks if not name.startswith("celery."))
    name = names[0] if names else "your.task"
    call = {"task": name, "args": _arguments(app.tasks.get(name))}
    return f"curl {url}/api/jobs -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(call))}"


def _arguments(task: Any) -> list[str]:
    """Return an example value for each required argument of *task*: the argument's name."""
    if task is None:
        return []
    needed = inspect.signature(task.run).parameters.values()
    return [
        parameter.name
        for parameter in needed
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
