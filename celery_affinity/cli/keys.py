"""``celery -A proj affinity keys ...``: look at the keys of jobs, and set their limits at run time."""

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..client.of_app import settings_of
from ..observe.keyed import in_use
from ..rules.keyed import key_limits
from ..rules.settings import Settings
from ..server import runtime_settings
from ..server.scheduler import Scheduler
from . import text_of_keys as text
from .broker import AS_JSON, print_json, reader_of, scheduler_of, show
from .lists_by_default import ListsByDefault

_LIMITS = "limits"


@click.group(cls=ListsByDefault)
def keys() -> None:
    """Show keys and change their limits and rates. A limited number of jobs of one key run at a time, or start.

    `keys [PATTERN]` means `keys list [PATTERN]`.
    """


@keys.command("list", cls=CeleryCommand)
@click.argument("pattern", default="*")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000), help="Largest number to show.")
@AS_JSON
@click.pass_context
@handle_preload_options
def list_keys(ctx: click.Context, pattern: str, limit: int, as_json: bool) -> None:
    """List the keys that jobs hold or wait for. * in PATTERN stands for any characters."""
    with reader_of(ctx) as reader:
        found = in_use.find(reader, pattern, limit)
    show(found, text.keys, json=as_json)


@keys.command("show", cls=CeleryCommand)
@click.argument("key")
@AS_JSON
@click.pass_context
@handle_preload_options
def show_key(ctx: click.Context, key: str, as_json: bool) -> None:
    """Show a key: its limit, its holders, and the jobs that wait for it."""
    with reader_of(ctx) as reader:
        found = in_use.show(reader, key)
    if found is None:
        raise click.ClickException(f"no job holds the key {key!r} or waits for it")
    show(found, text.key, json=as_json)


@keys.command("set", cls=CeleryCommand)
@click.argument("pattern")
@click.argument("limit")
@AS_JSON
@click.pass_context
@handle_preload_options
def set_limit(ctx: click.Context, pattern: str, limit: str, as_json: bool) -> None:
    """Set how many jobs of each key that matches PATTERN may run at a time. 0 closes the key.

    For a PATTERN that begins with rate:, LIMIT is how many may start in a period, such as 100/m. The limit takes
    effect at once, also for waiting jobs, and stays until it is reset. It overrides what the tasks say.
    """
    with scheduler_of(ctx) as scheduler:
        own = settings_of(ctx.obj.app)
        found, _ = _limits(scheduler, own)
        runtime_settings.change(
            scheduler, own, {_LIMITS: key_limits.shown({**found, pattern: key_limits.one_typed(limit)})}
        )
        _show_limits(scheduler, own, as_json=as_json)


@keys.command("reset", cls=CeleryCommand)
@click.argument("pattern")
@AS_JSON
@click.pass_context
@handle_preload_options
def reset_limit(ctx: click.Context, pattern: str, as_json: bool) -> None:
    """Remove the limit that was set for PATTERN. The limit in app.conf counts again, or else the tasks' limits."""
    with scheduler_of(ctx) as scheduler:
        own = settings_of(ctx.obj.app)
        found, conf = _limits(scheduler, own)
        if pattern not in found.keys() | conf.keys():
            known = f"set are {', '.join(sorted(found))}" if found else "none is set"
            raise click.ClickException(f"no limit is set for {pattern!r}: {known}")
        runtime_settings.reset_entry(scheduler, own, _LIMITS, pattern, found=found, conf=conf, shown=key_limits.shown)
        _show_limits(scheduler, own, as_json=as_json)


def _limits(scheduler: Scheduler, own: Settings) -> tuple[dict[str, key_limits.Limit], dict[str, key_limits.Limit]]:
    """Return the limits in force, and those of the app.conf that a reset goes back to."""
    (found,) = (each for each in runtime_settings.read(scheduler, own) if each.name == _LIMITS)
    return key_limits.typed(str(found.value)) or {}, key_limits.typed(str(found.conf)) or {}


def _show_limits(scheduler: Scheduler, own: Settings, *, as_json: bool) -> None:
    found, conf = _limits(scheduler, own)
    if as_json:
        print_json(found)
    else:
        click.echo(text.limits(found, conf))
