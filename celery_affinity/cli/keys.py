"""``celery -A proj affinity keys ...``: look at the keys of jobs, and set their limits at run time."""

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..client.of_app import settings_of
from ..observe import cohorts
from ..observe.keyed import in_use
from ..rules.keyed import key_limits
from ..rules.settings import Settings
from ..server import runtime_settings
from ..server.fleet import Asked
from ..server.scheduler import Scheduler
from . import text_of_keys as text
from .broker import AS_JSON, asked_of, changed_of, show, show_each
from .lists_by_default import ListsByDefault

_LIMITS = "limits"

#: The limits in force, and those of the app.conf that a reset goes back to.
_Limits = tuple[dict[str, key_limits.Limit], dict[str, key_limits.Limit]]


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
    found = cohorts.found(asked_of(ctx, lambda scheduler: in_use.find(scheduler.reader, pattern, limit)))
    show(found, text.keys, json=as_json)


@keys.command("show", cls=CeleryCommand)
@click.argument("key")
@AS_JSON
@click.pass_context
@handle_preload_options
def show_key(ctx: click.Context, key: str, as_json: bool) -> None:
    """Show a key: its limit, its holders, and the jobs that wait for it."""
    asked = asked_of(ctx, lambda scheduler: in_use.show(scheduler.reader, key))
    found = {name: each for name, each in asked.answers.items() if each is not None}
    if not found:
        raise click.ClickException(f"no job holds the key {key!r} or waits for it")
    show_each(Asked(found, asked.down), text.key, json=as_json)


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
    own = settings_of(ctx.obj.app)

    def change(scheduler: Scheduler) -> _Limits:
        found, _ = _limits(scheduler, own)
        runtime_settings.change(
            scheduler, own, {_LIMITS: key_limits.shown({**found, pattern: key_limits.one_typed(limit)})}
        )
        return _limits(scheduler, own)

    changed_of(ctx, change, _in_words, json=as_json, in_json=lambda both: both[0])


@keys.command("reset", cls=CeleryCommand)
@click.argument("pattern")
@AS_JSON
@click.pass_context
@handle_preload_options
def reset_limit(ctx: click.Context, pattern: str, as_json: bool) -> None:
    """Remove the limit that was set for PATTERN. The limit in app.conf counts again, or else the tasks' limits."""
    own = settings_of(ctx.obj.app)

    known: set[str] = set()

    def reset(scheduler: Scheduler) -> _Limits | None:
        found, conf = _limits(scheduler, own)
        known.update(found)
        if pattern not in found.keys() | conf.keys():
            return None
        runtime_settings.reset_entry(scheduler, own, _LIMITS, pattern, found=found, conf=conf, shown=key_limits.shown)
        return _limits(scheduler, own)

    def not_set() -> str:
        others = f"set are {', '.join(sorted(known))}" if known else "none is set"
        return f"no limit is set for {pattern!r}: {others}"

    changed_of(ctx, reset, _in_words, json=as_json, in_json=lambda both: both[0], nothing=not_set)


def _limits(scheduler: Scheduler, own: Settings) -> _Limits:
    """Return the limits in force, and those of the app.conf that a reset goes back to."""
    (found,) = (each for each in runtime_settings.read(scheduler, own) if each.name == _LIMITS)
    return key_limits.typed(str(found.value)) or {}, key_limits.typed(str(found.conf)) or {}


def _in_words(both: _Limits) -> str:
    return text.limits(*both)
