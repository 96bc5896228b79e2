"""``celery -A proj affinity recurring ...``: list recurring calls, make one now, pause or remove one."""

import click

from ..dispatcher.recurring import fire_call
from ..options.did_you_mean import closest_question
from ..reports.recurring import RecurringRow, recurring_rows
from ..reports.render import duration_text
from ..scheduler.cohorts import Cohorts
from ..scheduler.messages import DueCall
from .framework import check_app_conf, cohorts_of_context, command, report_command, warn_cohorts_down
from .groups import DefaultListGroup


@click.group(cls=DefaultListGroup)
def recurring() -> None:
    """List, make, pause or remove recurring calls: calls that are made when no matching call came for a while.

    `recurring` means `recurring list`.
    """


recurring.add_command(report_command("recurring list"))


@command("fire", recurring)
@click.argument("name")
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


@command("remove", recurring)
@click.argument("name")
def remove(ctx: click.Context, name: str) -> None:
    """Remove the call NAME. A call in affinity_recurring is added again when that setting has changed."""
    with cohorts_of_context(ctx) as fleet:
        cohort, call = _find(fleet, name)
        fleet.act(cohort, lambda scheduler: scheduler.remove_recurring(name))
    of_conf = f"; affinity_recurring of app {call.app!r} still has it" if call.app else ""
    click.echo(f"removed: {name}{of_conf}")


@command("pause", recurring)
@click.argument("name")
def pause(ctx: click.Context, name: str) -> None:
    """Pause the call NAME until `recurring resume NAME`."""
    with cohorts_of_context(ctx) as fleet:
        fleet.ask(_find(fleet, name)[0], lambda scheduler: scheduler.pause_recurring(name, True))
    click.echo(f"paused: {name}")


@command("resume", recurring)
@click.argument("name")
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
        question = closest_question(name, [row.name for _, row in calls])
        raise click.ClickException(f"no recurring call is named {name!r}{question}")
    return match
