"""``celery -A proj affinity ...``: look at the fleet, and run a dispatcher of its own."""

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options
from kombu.exceptions import OperationalError

from .dispatcher import Dispatcher
from .report import DeadLetter, Report, Status, TypeStatus, WorkerStatus
from .transport import AffinityChannel


@click.group()
@click.pass_context
def affinity(ctx: click.Context) -> None:
    """Schedule tasks by affinity: look at the fleet, run a dispatcher."""


@contextmanager
def _channel(ctx: click.Context) -> Iterator[AffinityChannel]:
    """Yield a channel of the app's broker, or end the command with a line that says what is wrong."""
    app = ctx.obj.app
    with app.connection_for_write() as connection:
        try:
            connection.ensure_connection(max_retries=1)
            channel = connection.default_channel
        except (OperationalError, *connection.connection_errors) as exc:
            raise click.ClickException(f"the broker {connection.as_uri()} does not answer: {exc}") from exc
        if not isinstance(channel, AffinityChannel):
            raise click.ClickException(
                f"broker_transport must be 'celery_affinity:Transport', got: {app.conf.broker_transport!r}"
            )
        yield channel


@contextmanager
def _report(ctx: click.Context) -> Iterator[Report]:
    with _channel(ctx) as channel:
        yield Report(channel.scheduler.client, channel.scheduler.keys)


@affinity.command(cls=CeleryCommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
@click.pass_context
@handle_preload_options
def status(ctx: click.Context, as_json: bool) -> None:
    """Show types (pending, oldest wait, slots) and workers."""
    with _report(ctx) as report:
        found = report.status()
    click.echo(json.dumps(_as_json(found), indent=2) if as_json else _as_text(found))


@affinity.command(cls=CeleryCommand)
@click.pass_context
@handle_preload_options
def dispatcher(ctx: click.Context) -> None:
    """Run a dispatcher alone, for fleets that scale to zero workers. Ctrl-C or SIGTERM ends it."""
    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    with _channel(ctx) as channel:
        loop = Dispatcher(channel.scheduler)
        loop.start()
        click.echo(f"dispatcher ready on {channel.connection.client.as_uri()}")
        ended.wait()
        loop.stop()


@affinity.group()
def dead() -> None:
    """Look at the dead letters: jobs that will not run again, and why."""


@dead.command("list", cls=CeleryCommand)
@click.option("--limit", default=100, show_default=True, type=click.IntRange(min=1), help="Show at most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
@click.pass_context
@handle_preload_options
def list_dead(ctx: click.Context, limit: int, as_json: bool) -> None:
    """List dead letters, the newest first."""
    with _report(ctx) as report:
        letters = report.dead(limit)
    if as_json:
        click.echo(json.dumps([asdict(letter) for letter in letters], indent=2))
        return
    click.echo(_table(("ended", "reason", "type", "task", "task id"), [_letter_row(letter) for letter in letters]))


def _as_json(found: Status) -> dict[str, Any]:
    types = [{**asdict(each), "busy": each.busy, "unserved": each.unserved} for each in found.types]
    return {**asdict(found), "types": types}


def _as_text(found: Status) -> str:
    types = _table(
        ("type", "pending", "on demand", "oldest wait", "free slots", "busy slots", ""),
        [_type_row(each) for each in found.types],
        red=[each.unserved for each in found.types],
    )
    workers = _table(
        ("worker", "types", "slots", "free", "last beat", ""), [_worker_row(each) for each in found.workers]
    )
    return f"{types}\n\n{workers}\n\nscheduled for later: {found.scheduled}   dead letters: {found.dead}"


def _type_row(each: TypeStatus) -> tuple[str, ...]:
    wait = "-" if each.oldest_wait_s is None else _duration(each.oldest_wait_s)
    note = "no live worker serves it" if each.unserved else ""
    return each.type, str(each.pending), str(each.on_demand), wait, str(each.free), str(each.busy), note


def _worker_row(each: WorkerStatus) -> tuple[str, ...]:
    note = "drains" if each.draining else ""
    beat = f"{_duration(each.last_beat_s)} ago"
    return each.name, ",".join(each.types), str(each.slots), str(each.free), beat, note


def _letter_row(letter: DeadLetter) -> tuple[str, ...]:
    ended = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.ended_s))
    return ended, letter.reason, letter.type, letter.task, letter.task_id


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], red: Sequence[bool] = ()) -> str:
    rows = [tuple(_printable(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [click.style(_line(header, widths), bold=True)]
    for number, row in enumerate(rows):
        line = _line(row, widths)
        lines.append(click.style(line, fg="red") if red and red[number] else line)
    return "\n".join(lines)


def _printable(cell: str) -> str:
    """Return *cell* in one line: names of types and tasks may hold anything."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in cell)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
