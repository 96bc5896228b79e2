"""``celery -A proj affinity up``: a server, the HTTP interface and a worker in one command, for the first minutes."""

import inspect
import json
import os
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from celery import Celery
from celery.bin.base import LOG_LEVEL, CeleryCommand, CommaSeparatedList, handle_preload_options
from celery.concurrency import get_implementation
from celery.utils.nodenames import default_nodename, host_format
from celery.worker import state

from ..check.gather_app import gather_app
from ..client.of_app import is_ours
from ..embedded import EmbeddedServer
from ..errors import AffinityError
from ..versions import install_with

#: Longest wait, s, until the HTTP interface listens.
_LISTENS_WITHIN_S = 15.0


@click.command(cls=CeleryCommand)
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path, file_okay=False), help="Directory in which to keep the data."
)
@click.option(
    "--port",
    default=5556,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Port of the page; 0 takes a free one.",
)
@click.option("--queues", "-Q", type=CommaSeparatedList(), help="Types that the worker serves.  [default: all]")
@click.option(
    "--concurrency", "-c", default=4, show_default=True, type=click.IntRange(1, 1000), help="Threads of the worker."
)
@click.option("--loglevel", "-l", default="WARNING", show_default=True, type=LOG_LEVEL, help="Lowest level to log.")
@click.pass_context
@handle_preload_options
def up(
    ctx: click.Context, directory: Path | None, port: int, queues: list[str] | None, concurrency: int, loglevel: str
) -> None:
    """Try an app without a server of your own: run a server, the page and a worker. Not for production.

    Needs the extras `embedded` and `web`. Ctrl-C or SIGTERM ends all three. Without --dir, the data are
    deleted.
    """
    app: Celery = ctx.obj.app
    if not is_ours(app.conf.broker_transport):
        raise click.ClickException('app.conf.broker_transport must be "celery_affinity:Transport"')
    try:
        with _server(directory) as server:
            _use(server.url)
            types = queues or sorted({app.conf.task_default_queue, *gather_app(app).declared})
            url = _serve(app, port)
            click.echo(_welcome(app, url, server.url, types, directory))
            ctx.exit(_work(app, types, concurrency, loglevel))
    except AffinityError as exc:
        raise click.ClickException(str(exc)) from exc


@contextmanager
def _server(directory: Path | None) -> Iterator[EmbeddedServer]:
    options = () if directory is None else ("--appendonly", "yes")
    with EmbeddedServer(directory=None if directory is None else directory.resolve(), options=options) as server:
        yield server


def _use(url: str) -> None:
    """Have the app use the server at *url*, as broker and for results, whatever its app.conf says."""
    os.environ["CELERY_BROKER_URL"] = os.environ["CELERY_RESULT_BACKEND"] = url  # win over app.conf
    for name in ("CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"):
        os.environ[name] = url


def _serve(app: Celery, port: int) -> str:
    """Serve the HTTP interface from a thread. Return its URL."""
    try:
        from ..web.serve import serve  # not at the top: other commands do without the extra
    except ImportError as exc:
        raise click.ClickException(f"{exc}: {install_with('web')}") from exc
    ready, found, failed = threading.Event(), list[str](), list[BaseException]()

    def run() -> None:
        try:
            serve(
                app,
                host="127.0.0.1",
                port=port,
                token_file=None,
                read_only=False,
                allow=["*"],
                names=[],
                on_ready=on_ready,
            )
        except BaseException as exc:
            failed.append(exc)
            ready.set()

    def on_ready(url: str) -> None:
        found.append(url)
        ready.set()

    threading.Thread(target=run, name="affinity-web", daemon=True).start()
    ready.wait(_LISTENS_WITHIN_S)
    if not found:
        why = str(failed[0]) if failed else "no answer"
        raise click.ClickException(f"cannot listen at 127.0.0.1:{port}: {why}; --port takes another one, 0 a free one")
    return found[0]


def _work(app: Celery, types: list[str], concurrency: int, loglevel: str) -> int:
    """Run a worker until a signal ends it. Return its exit code: 0 as well after Ctrl-C, for which Celery has 1."""
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
    ended_as_asked = state.should_stop is not None and not state.should_terminate
    return 0 if ended_as_asked else int(worker.exitcode or 0)


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
    """Return a text for each argument that a call of *task* must have: the argument's name."""
    if task is None:
        return []
    needed = inspect.signature(task.run).parameters.values()
    return [each.name for each in needed if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
