"""``celery -A proj affinity status``, ``explain``, ``pending`` and ``top``: look at the fleet."""

import time
from contextlib import suppress

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..client.of_app import settings_of
from ..client.stock_lists_of import stock_lists_of
from ..clock import SECOND_US
from ..observe import cohorts
from ..observe.as_json import as_json as as_json_of
from ..observe.claim_order import Next
from ..observe.explain import Explanation
from ..operate import values
from . import text_of_explain, text_of_jobs, text_of_status
from .broker import AS_JSON, fleet_of, say_down, show
from .times import COUNT, SecondsRange

_LIMIT = click.option("--limit", default=20, show_default=True, type=COUNT, help="Largest number to show.")


@click.command(cls=CeleryCommand)
@AS_JSON
@click.pass_context
@handle_preload_options
def status(ctx: click.Context, as_json: bool) -> None:
    """Show types (pending, oldest wait, slots) and workers."""
    with fleet_of(ctx) as fleet:
        found = cohorts.status(fleet, settings_of(ctx.obj.app).max_pending, stock_lists_of(ctx.obj.app))
    say_down(found.down)
    show(found, text_of_status.status, json=as_json)


@click.command(cls=CeleryCommand)
@click.argument("task_id")
@click.option("--values", "with_values", is_flag=True, help="Show arguments, and the result or traceback, where known.")
@AS_JSON
@click.pass_context
@handle_preload_options
def explain(ctx: click.Context, task_id: str, with_values: bool, as_json: bool) -> None:
    """Show where a task is and, if it waits, why and for how long.

    Exits with 1 if the task is unknown.
    """
    wanted = task_id.strip()  # ids copied from a log have blanks around them
    hidden = values.why_hidden(ctx.obj.app) if with_values else None
    if hidden:
        raise click.UsageError(f"--values: {hidden}")
    with fleet_of(ctx) as fleet:
        found = cohorts.explain(fleet, wanted, stock_lists_of(ctx.obj.app))
        known = (
            fleet.ask(found.cohort or fleet.names[0], lambda one: values.arguments(one.reader, found))
            if with_values
            else None
        )
    if known is None:
        show(found, text_of_explain.explanation, json=as_json)
    else:
        _show_with(values.with_result(ctx.obj.app, wanted, known), found, as_json)
    if found.state == "unknown":
        ctx.exit(1)


def _show_with(its: values.Values, found: Explanation, as_json: bool) -> None:
    shown = as_json_of(found)
    assert isinstance(shown, dict)
    words = f"{text_of_explain.explanation(found)}\n\n{text_of_explain.values(its)}"
    show({**shown, "values": its}, lambda _: words, json=as_json)


@click.command(cls=CeleryCommand)
@click.argument("types", metavar="[TYPE]...", nargs=-1)
@_LIMIT
@AS_JSON
@click.pass_context
@handle_preload_options
def pending(ctx: click.Context, types: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List the next pending jobs, in the order in which they would be claimed now."""
    with fleet_of(ctx) as fleet:
        found, down = cohorts.next_jobs(fleet, types or None, limit)
        served = cohorts.served(fleet) if types and not found else set()
    say_down(down)

    def as_text(found: list[Next]) -> str:
        return text_of_jobs.upcoming(found) if found else text_of_jobs.nothing_pending(types, served)

    show(found, as_text, json=as_json)


@click.command(cls=CeleryCommand)
@_LIMIT
@click.option(
    "--interval", default=2.0, show_default=True, type=SecondsRange(min=0.1), help="Seconds between refreshes."
)
@click.option("--count", type=COUNT, help="Refresh N times, then exit. Default: until Ctrl-C.", metavar="N")
@click.pass_context
@handle_preload_options
def top(ctx: click.Context, limit: int, interval: float, count: int | None) -> None:
    """Show live: types, workers, the jobs that they hold and for how long, and the next jobs."""
    looks = 0
    with fleet_of(ctx) as fleet, suppress(KeyboardInterrupt):
        while looks != count:
            state = cohorts.status(fleet, settings_of(ctx.obj.app).max_pending)
            now_s = fleet.main.reader.now_us() / SECOND_US
            running = text_of_jobs.running(cohorts.held(fleet, limit), now_s)
            upcoming = text_of_jobs.upcoming(cohorts.next_jobs(fleet, None, limit)[0])
            click.clear()  # does nothing without a terminal
            say_down(state.down)
            click.echo(f"{text_of_status.status(state)}\n\n{running}\n\n{upcoming}")
            looks += 1
            if looks != count:
                time.sleep(interval)
