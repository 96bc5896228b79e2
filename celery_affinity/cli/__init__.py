"""``celery -A proj affinity ...``: look at the fleet, turn its knobs, and run a dispatcher of its own."""

import signal
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from socket import gethostname
from typing import Any

import click
from celery.bin.base import LOG_LEVEL, CeleryCommand, handle_preload_options

from ..client.of_app import settings_of
from ..dispatcher.announcer import Announcer
from ..dispatcher.dispatcher import SHORT_PAUSE_S, Dispatcher
from ..dispatcher.ingest import Ingest
from ..dispatcher.teller import Teller
from ..errors import AffinityError
from ..observe import explain as explanation
from ..observe.claim_order import next_jobs
from ..observe.status import Report, Status
from ..rules.keys import decode, encode
from ..server import runtime_settings
from ..worker import remote_control  # noqa: F401  # so that `celery inspect` knows our commands
from . import text
from .broker import AS_JSON, print_json, reader_of, scheduler_of
from .check import check_command
from .dead import dead


@click.group()
@click.pass_context
def affinity(ctx: click.Context) -> None:
    """Schedule tasks by affinity: look at the fleet, turn its knobs, run a dispatcher."""


affinity.add_command(check_command)
affinity.add_command(dead)


# -- look


@affinity.command(cls=CeleryCommand)
@AS_JSON
@click.pass_context
@handle_preload_options
def status(ctx: click.Context, as_json: bool) -> None:
    """Show types (pending, oldest wait, slots) and workers."""
    with reader_of(ctx) as reader:
        found = Report(reader).status()
    if as_json:
        print_json(_status_as_json(found))
    else:
        click.echo(text.status(found))


def _status_as_json(found: Status) -> dict[str, Any]:
    types = [{**asdict(each), "busy": each.busy, "unserved": each.unserved} for each in found.types]
    return {**asdict(found), "types": types}


@affinity.command(cls=CeleryCommand)
@click.argument("task_id")
@AS_JSON
@click.pass_context
@handle_preload_options
def explain(ctx: click.Context, task_id: str, as_json: bool) -> None:
    """Say where a task is and, if it waits, why and for how long.

    Ends with 1 if the task is unknown.
    """
    with reader_of(ctx) as reader:
        found = explanation.explain(reader, task_id.strip())  # as it was copied from a log
    if as_json:
        print_json(asdict(found))
    else:
        click.echo(text.explanation(found))
    if found.state == "unknown":
        ctx.exit(1)


_LIMIT = click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(min=1), help="Show at most so many."
)


@affinity.command(cls=CeleryCommand)
@click.argument("types", metavar="[TYPE]...", nargs=-1)
@_LIMIT
@AS_JSON
@click.pass_context
@handle_preload_options
def pending(ctx: click.Context, types: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List the pending jobs that are next, in the order in which they would be claimed now."""
    with reader_of(ctx) as reader:
        found = next_jobs(reader, [encode(type_) for type_ in types] or None, limit)
        served = {decode(type_) for type_ in reader.capacity()} if types and not found else set()
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        click.echo(text.upcoming(found) if found else text.nothing_pending(types, served))


@affinity.command(cls=CeleryCommand)
@_LIMIT
@click.option(
    "--interval", default=2.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds between looks."
)
@click.option("--count", type=click.IntRange(min=1), help="Look so often, then end. Without it: until Ctrl-C.")
@click.pass_context
@handle_preload_options
def top(ctx: click.Context, limit: int, interval: float, count: int | None) -> None:
    """Show types, workers and the next jobs, live."""
    looks = 0
    with reader_of(ctx) as reader, suppress(KeyboardInterrupt):
        while looks != count:
            page = f"{text.status(Report(reader).status())}\n\n{text.upcoming(next_jobs(reader, None, limit))}"
            click.clear()  # does nothing where no terminal is
            click.echo(page)
            looks += 1
            if looks != count:
                time.sleep(interval)


# -- knobs


@affinity.group(invoke_without_command=True)
@AS_JSON
@click.pass_context
def settings(ctx: click.Context, as_json: bool) -> None:
    """Show the scheduling settings in force, or change them for the whole fleet."""
    if ctx.invoked_subcommand is None:
        with scheduler_of(ctx) as scheduler:
            _show_knobs(runtime_settings.read(scheduler, settings_of(ctx.obj.app)), as_json)


@settings.command("set", cls=CeleryCommand)
@click.argument("pairs", metavar="NAME VALUE [NAME VALUE]...", nargs=-1, required=True)
@AS_JSON
@click.pass_context
@handle_preload_options
def set_settings(ctx: click.Context, pairs: tuple[str, ...], as_json: bool) -> None:
    """Change settings at run time: in force for the next claim, kept until they are reset."""
    if len(pairs) % 2:
        raise click.UsageError(f"a value is missing for {pairs[-1]!r}: give names and values in turn")
    typed = dict(zip(pairs[::2], pairs[1::2], strict=True))
    with scheduler_of(ctx) as scheduler:
        _show_knobs(runtime_settings.change(scheduler, settings_of(ctx.obj.app), typed), as_json)


@settings.command("reset", cls=CeleryCommand)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Reset every setting.")
@AS_JSON
@click.pass_context
@handle_preload_options
def reset_settings(ctx: click.Context, names: tuple[str, ...], all_: bool, as_json: bool) -> None:
    """Have settings go back to what app.conf says."""
    if bool(names) == all_:
        raise click.UsageError("give the names of settings, or --all")
    with scheduler_of(ctx) as scheduler:
        _show_knobs(runtime_settings.reset(scheduler, settings_of(ctx.obj.app), names), as_json)


def _show_knobs(found: list[runtime_settings.Knob], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {**asdict(each), "changed_at_run_time": each.changed_at_run_time, "disputed": each.disputed}
                for each in found
            ]
        )
    else:
        click.echo(text.knobs(found))


# -- run


@affinity.command(cls=CeleryCommand)
@click.option("--loglevel", "-l", default="WARNING", show_default=True, type=LOG_LEVEL, help="What is logged.")
@click.pass_context
@handle_preload_options
def dispatcher(ctx: click.Context, loglevel: int) -> None:
    """Run a dispatcher alone, for fleets that scale to zero workers. Ctrl-C or SIGTERM ends it."""
    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    app = ctx.obj.app
    app.log.setup_logging_subsystem(loglevel=loglevel)
    app.loader.import_default_modules()  # the tasks whose ends it tells
    try:
        settings_of(app)  # each tick asks for them
    except AffinityError as exc:
        raise click.ClickException(str(exc)) from exc
    hostname = f"dispatcher@{gethostname()}"
    with scheduler_of(ctx, patient_until=ended) as scheduler, app.connection_for_write() as connection:
        events = app.events.Dispatcher(connection, hostname=hostname, enabled=bool(app.conf.worker_send_task_events))
        announcer = Announcer(Teller(app, hostname, lambda: events))
        loop = Dispatcher(scheduler, announcer, Ingest(app), pause_s=SHORT_PAUSE_S)
        scheduler.load_for_producers()
        loop.start()
        click.echo(f"dispatcher ready on {app.connection_for_write().as_uri()}")
        ended.wait()
        loop.stop()
