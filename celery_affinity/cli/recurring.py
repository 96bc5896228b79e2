"""``celery -A proj affinity recurring ...``: list recurring calls, make one now, pause or remove one."""

from collections.abc import Sequence

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..admin.job_values import hidden_reason
from ..dispatcher.recurring import fire_call
from ..options.did_you_mean import closest_names
from ..reports.recurring import RecurringRow, recurring_rows, without_arguments
from ..scheduler.cohorts import Cohorts
from ..scheduler.messages import DueCall
from .framework import (
    AS_JSON,
    DefaultListGroup,
    check_app_conf,
    cohorts_of_context,
    rows_of_cohorts,
    show_report,
    warn_cohorts_down,
)
from .render import approximate_text, duration_text, with_cohort_column


@click.group(cls=DefaultListGroup)
def recurring() -> None:
    """List, make, pause or remove recurring calls: calls that are made when no matching call came for a while.

    `recurring` means `recurring list`.
    """


@recurring.command("list", cls=CeleryCommand)
@AS_JSON
@click.pass_context
@handle_preload_options
def list_calls(ctx: click.Context, as_json: bool) -> None:
    """List the recurring calls: what they match, the last match, and the next firing."""
    calls = rows_of_cohorts(ctx, lambda scheduler: recurring_rows(scheduler.reader))
    show_report(without_arguments(calls) if hidden_reason(ctx.obj.app) else calls, _calls_table, json=as_json)


@recurring.command("fire", cls=CeleryCommand)
@click.argument("name")
@click.pass_context
@handle_preload_options
def fire(ctx: click.Context, name: str) -> None:
    """Make the call NAME now. The next one follows after the interval, as after any matching call."""
    app = ctx.obj.app
    check_app_conf(app)
    app.loader.import_default_modules()
    with cohorts_of_context(ctx) as fleet:
        cohort, call = _find(fleet, name)
        if call.task not in app.tasks:
            raise click.ClickException(f"the app has no task {call.task!r}, the task of recurring call {name!r}")
        fleet.act(cohort, lambda scheduler: fire_call(app, scheduler, DueCall(name, "", call.task, call.signature)))
    click.echo(f"made: {name}; again in {duration_text(call.stale_after_s)} unless a matching call comes")


@recurring.command("remove", cls=CeleryCommand)
@click.argument("name")
@click.pass_context
@handle_preload_options
def remove(ctx: click.Context, name: str) -> None:
    """Remove the call NAME. A call in affinity_recurring is added again when that setting has changed."""
    with cohorts_of_context(ctx) as fleet:
        cohort, call = _find(fleet, name)
        fleet.act(cohort, lambda scheduler: scheduler.remove_recurring(name))
    of_conf = f"; affinity_recurring of app {call.app!r} still has it" if call.app else ""
    click.echo(f"removed: {name}{of_conf}")


@recurring.command("pause", cls=CeleryCommand)
@click.argument("name")
@click.pass_context
@handle_preload_options
def pause(ctx: click.Context, name: str) -> None:
    """Pause the call NAME until `recurring resume NAME`."""
    with cohorts_of_context(ctx) as fleet:
        fleet.ask(_find(fleet, name)[0], lambda scheduler: scheduler.pause_recurring(name, True))
    click.echo(f"paused: {name}")


@recurring.command("resume", cls=CeleryCommand)
@click.argument("name")
@click.pass_context
@handle_preload_options
def resume(ctx: click.Context, name: str) -> None:
    """Resume the call NAME. It is made immediately if no matching call came during the pause."""
    with cohorts_of_context(ctx) as fleet:
        fleet.ask(_find(fleet, name)[0], lambda scheduler: scheduler.pause_recurring(name, False))
    click.echo(f"resumed: {name}")


def _find(fleet: Cohorts, name: str) -> tuple[str, RecurringRow]:
    """Return the cohort of a recurring call, and the call."""
    reply = fleet.each(lambda scheduler: recurring_rows(scheduler.reader))
    calls = [(cohort, row) for cohort, rows in reply.answers.items() for row in rows]
    match = next((call for call in calls if call[1].name == name), None)
    if match is None:
        warn_cohorts_down(reply.down)
        close = closest_names(name, [row.name for _, row in calls])
        question = f"; did you mean {close!r}?" if close else ""
        raise click.ClickException(f"no recurring call is named {name!r}{question}")
    return match


def _calls_table(rows: Sequence[RecurringRow]) -> str:
    if not rows:
        return "there are no recurring calls"
    header = ("name", "task", "type", "key", "every", "last match", "fires in", "declared by")
    return with_cohort_column(rows, header, [_cells(row) for row in rows])


def _cells(row: RecurringRow) -> tuple[str, ...]:
    last = "-"
    if row.matched_ago_s is not None:
        last = f"{duration_text(row.matched_ago_s)} ago"
        last += f", task {row.matched_by}" if row.matched_by else ""
    fires = "paused" if row.is_suspended or row.fires_in_s is None else duration_text(max(0.0, row.fires_in_s))
    every = approximate_text(row.stale_after_s) + (" from the end" if row.since == "end" else "")
    return row.name, row.task, row.type, row.merge_key, every, last, fires, row.app or "run time"
