"""``celery -A proj affinity settings ...``: show the settings in force, and change them at run time."""

from collections.abc import Callable

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..client.of_app import settings_of
from ..observe import cohorts
from ..server import runtime_settings
from ..server.runtime_settings import RuntimeSetting
from ..server.scheduler import Scheduler
from . import text_of_settings as text
from .broker import AS_JSON, asked_of, rows_of, show


@click.group(invoke_without_command=True)
@AS_JSON
@click.pass_context
def settings(ctx: click.Context, as_json: bool) -> None:
    """Show the scheduling settings in force, or change them for the whole fleet."""
    if ctx.invoked_subcommand is None:
        found = rows_of(ctx, lambda scheduler: runtime_settings.read(scheduler, settings_of(ctx.obj.app)))
        show(found, text.settings, json=as_json)


@settings.command("set", cls=CeleryCommand)
@click.argument("pairs", metavar="NAME VALUE [NAME VALUE]...", nargs=-1, required=True)
@AS_JSON
@click.pass_context
@handle_preload_options
def set_settings(ctx: click.Context, pairs: tuple[str, ...], as_json: bool) -> None:
    """Change settings at run time. A change counts from the next claim on, and stays until it is reset."""
    if len(pairs) % 2:
        raise click.UsageError(f"a value is missing for {pairs[-1]!r}: give names and values in turn")
    typed = dict(zip(pairs[::2], pairs[1::2], strict=True))
    own = settings_of(ctx.obj.app)
    _change(ctx, lambda scheduler: runtime_settings.change(scheduler, own, typed), as_json)


@settings.command("reset", cls=CeleryCommand)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Reset every setting.")
@AS_JSON
@click.pass_context
@handle_preload_options
def reset_settings(ctx: click.Context, names: tuple[str, ...], all_: bool, as_json: bool) -> None:
    """Reset settings to the values of app.conf."""
    if bool(names) == all_:
        raise click.UsageError("give the names of settings, or --all")
    own = settings_of(ctx.obj.app)
    _change(ctx, lambda scheduler: runtime_settings.reset(scheduler, own, names), as_json)


def _change(ctx: click.Context, change: Callable[[Scheduler], list[RuntimeSetting]], as_json: bool) -> None:
    """Change the settings of each cohort, and show them. Exits with 1 if a cohort is down."""
    asked = asked_of(ctx, change)
    show(cohorts.rows(asked), text.settings, json=as_json)
    if asked.down:
        ctx.exit(1)
