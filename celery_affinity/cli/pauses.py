"""``celery -A proj affinity pause`` and ``resume``: no job of a type, of a key, or of any type starts for a while."""

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..observe import cohorts
from ..observe.type_rules import Pause, address, in_vain, no_pause, pauses
from ..rules.addresses import Kind
from ..rules.type_name import ACCEPTED, is_type
from ..server.scheduler import Scheduler
from .broker import AS_JSON, fleet_of, rows_of, say_down, show
from .times import seconds
from .words import moment


def _what(type_: str | None, key: str | None, everything: bool) -> tuple[Kind, str]:
    """Return what is meant. Raises UsageError unless it is one thing."""
    if (type_ is not None) + (key is not None) + everything != 1:
        raise click.UsageError("give one of: a TYPE, --key KEY, or --all")
    if everything:
        return "all", ""
    if key == "":
        raise click.UsageError("a key is a text that is not empty, got: ''")
    if key is not None:
        return "key", key
    if not is_type(type_):
        raise click.UsageError(f"a type is {ACCEPTED}, got: {type_!r}")
    return "type", str(type_)


_KEY = click.option("--key", metavar="KEY", help="The jobs of this key, as `keys` shows it, instead of a type.")
_ALL = click.option("--all", "everything", is_flag=True, help="The jobs of all types.")


@click.command(cls=CeleryCommand)
@click.argument("type_", metavar="[TYPE]", required=False)
@_KEY
@_ALL
@click.option("--reason", default="", metavar="WHY", help="Reason, shown by `status`, `explain` and the logs.")
@click.option(
    "--for", "for_s", callback=seconds, metavar="TIME", help="End the pause after this time: 90s, 30m, 2h, 1d."
)
@AS_JSON
@click.pass_context
@handle_preload_options
def pause(
    ctx: click.Context,
    type_: str | None,
    key: str | None,
    everything: bool,
    reason: str,
    for_s: float | None,
    as_json: bool,
) -> None:
    """Pause a TYPE, a key, or all types until `resume`. Without arguments, list the pauses.

    No paused job starts. Running jobs go on. Claimed jobs that have not started go back to their places. Publishing,
    ETA, expiry and revokes work as always. Redis stores the pause, so a restart of workers does not end it. `status`,
    `explain` and the workers' logs show what is paused, since when, and why.
    """
    if type_ is None and key is None and not everything:
        found = rows_of(ctx, _pauses)
        show(found, _listed, json=as_json)
        return
    kind, name = _what(type_, key, everything)

    def begin(scheduler: Scheduler) -> str | None:
        scheduler.pause(address(kind, name), for_s=for_s, why=reason)
        return in_vain(scheduler.reader, kind, name)

    with fleet_of(ctx) as fleet:
        serving = fleet.serving(name if kind == "type" else None)
        begun = fleet.each(begin, serving)
        found = cohorts.rows(fleet.each(_pauses))
    warning = next(iter(begun.answers.values()), None)
    show(found, _listed, json=as_json)
    if warning:
        click.echo(warning, err=True)
    if begun.down:
        say_down(begun.down)
        ctx.exit(1)


@click.command(cls=CeleryCommand)
@click.argument("type_", metavar="[TYPE]", required=False)
@_KEY
@_ALL
@click.pass_context
@handle_preload_options
def resume(ctx: click.Context, type_: str | None, key: str | None, everything: bool) -> None:
    """End the pause of a TYPE, of a key, or of all types, and list the remaining pauses.

    --all ends the pause of `pause --all`. Types and keys that were paused separately stay paused.
    """
    kind, name = _what(type_, key, everything)
    with fleet_of(ctx) as fleet:
        serving = fleet.serving(name if kind == "type" else None)
        ended = fleet.act_in_each(lambda scheduler: scheduler.resume(address(kind, name)), serving)
        left = cohorts.rows(fleet.each(_pauses))
    say_down(ended.down)
    if not any(ended.answers.values()):
        others = f"paused: {', '.join(map(str, left))}" if left else "nothing is paused"
        raise click.ClickException(f"{no_pause(kind, name)}; {others}")
    click.echo("\n".join([f"resumed: {Pause(kind, name, 0, None, '')}", *map(sentence, left)]))
    if ended.down:
        ctx.exit(1)


def _pauses(scheduler: Scheduler) -> list[Pause]:
    return pauses(scheduler.reader)


def _listed(found: list[Pause]) -> str:
    return "\n".join(map(sentence, found)) if found else "nothing is paused"


def sentence(each: Pause) -> str:
    """Return a pause as a line."""
    until = "" if each.until is None else f"; until {moment(each.until)}"
    why = f": {each.why}" if each.why else ""
    where = f" in cohort {each.cohort}" if each.cohort else ""
    return f"paused: {each}{where} since {moment(each.since)}{why}{until}"
