"""``celery -A proj affinity settings ...``: show the settings in force, and change them at run time."""

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..client.of_app import settings_of
from ..server import runtime_settings
from . import text_of_settings as text
from .broker import AS_JSON, scheduler_of, show


@click.group(invoke_without_command=True)
@AS_JSON
@click.pass_context
def settings(ctx: click.Context, as_json: bool) -> None:
    """Show the scheduling settings in force, or change them for the whole fleet."""
    if ctx.invoked_subcommand is None:
        with scheduler_of(ctx) as scheduler:
            found = runtime_settings.read(scheduler, settings_of(ctx.obj.app))
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
    with scheduler_of(ctx) as scheduler:
        found = runtime_settings.change(scheduler, settings_of(ctx.obj.app), typed)
    show(found, text.settings, json=as_json)


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
    with scheduler_of(ctx) as scheduler:
        found = runtime_settings.reset(scheduler, settings_of(ctx.obj.app), names)
    show(found, text.settings, json=as_json)
