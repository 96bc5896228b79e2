"""``celery -A proj affinity settings``, ``pause``, ``resume``, ``cohorts``: show and change settings of the fleet."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..broker.client import PersistentClient
from ..errors import AffinityError
from ..options.type_names import ACCEPTED, is_type_name
from ..publishing.app_config import settings_of
from ..reports.report import find_report, rows_of_all
from ..reports.settings import SETTINGS
from ..reports.type_limits import (
    PauseInForce,
    has_no_pause,
    is_without_effect,
    pause_address,
    pause_line,
    pauses_of_cohort,
    pauses_text,
)
from ..scheduler import runtime_settings, server_info
from ..scheduler.reader import Reader
from ..scheduler.runtime_settings import RuntimeSetting
from ..scheduler.scheduler import Scheduler
from ..schema.keys import Keys, Kind
from ..schema.values import decode_part
from ..settings.cohorts import DEFAULT, Patterns, cohort_of, shown_cohorts
from ..transport.app_api import channel_on
from ..transport.channel import AffinityChannel
from .framework import (
    AS_JSON,
    answers_of,
    cohorts_of_context,
    command,
    connection_of_context,
    parse_seconds,
    print_declared,
    show_report,
    warn_cohorts_down,
)
from .groups import SuggestingGroup


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@AS_JSON
@click.pass_context
def settings(ctx: click.Context, as_json: bool) -> None:
    """Show the scheduling settings in force, or change them for the whole fleet."""
    if ctx.invoked_subcommand is None:
        print_declared(ctx, find_report("settings"), as_json=as_json)


@command("set", settings, json=True)
@click.argument("pairs", metavar="NAME VALUE [NAME VALUE]...", nargs=-1, required=True)
def set_settings(ctx: click.Context, pairs: tuple[str, ...], as_json: bool) -> None:
    """Change settings at run time. A change applies from the next claim on, and stays until it is reset."""
    if len(pairs) % 2:
        raise click.UsageError(f"a value is missing for {pairs[-1]!r}: give names and values in turn")
    typed = dict(zip(pairs[::2], pairs[1::2], strict=True))
    own = settings_of(ctx.obj.app)
    _change(ctx, lambda scheduler: runtime_settings.change_settings(scheduler, own, typed), as_json)


@command("reset", settings, json=True)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Reset every setting.")
def reset_settings(ctx: click.Context, names: tuple[str, ...], all_: bool, as_json: bool) -> None:
    """Reset settings to the values of app.conf."""
    if bool(names) == all_:
        raise click.UsageError("give the names of settings, or --all")
    own = settings_of(ctx.obj.app)
    _change(ctx, lambda scheduler: runtime_settings.reset_settings(scheduler, own, names), as_json)


def _change(ctx: click.Context, change: Callable[[Scheduler], list[RuntimeSetting]], as_json: bool) -> None:
    """Change the settings of each cohort, and show them. Exits with 1 if a cohort is down."""
    answers = answers_of(ctx, change)
    show_report(rows_of_all(answers), SETTINGS.text, json=as_json)
    if answers.down:
        ctx.exit(1)


def _pause_target(type_: str | None, key: str | None, everything: bool) -> tuple[Kind, str]:
    """Return the kind and the name of the target. Raises UsageError unless exactly one target is given."""
    if (type_ is not None) + (key is not None) + everything != 1:
        raise click.UsageError("give one of: a TYPE, --key KEY, or --all")
    if everything:
        return "all", ""
    if key == "":
        raise click.UsageError("a key is a text that is not empty, got: ''")
    if key is not None:
        return "key", key
    if not is_type_name(type_):
        raise click.UsageError(f"a type is {ACCEPTED}, got: {type_!r}")
    return "type", str(type_)


_KEY = click.option("--key", metavar="KEY", help="The jobs of this key, as `keys` shows it, instead of a type.")
_ALL = click.option("--all", "everything", is_flag=True, help="The jobs of all types.")


@command("pause", json=True)
@click.argument("type_", metavar="[TYPE]", required=False)
@_KEY
@_ALL
@click.option("--reason", default="", metavar="WHY", help="Reason, shown by `status`, `explain` and the logs.")
@click.option(
    "--for", "for_s", callback=parse_seconds, metavar="TIME", help="End the pause after this time: 90s, 30m, 2h, 1d."
)
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

    No paused job starts. Running jobs continue. Claimed jobs that have not started return to their places. Publishing,
    ETA, expiry and revokes work as always. Redis stores the pause, so a restart of workers does not end it. `status`,
    `explain` and the workers' logs show each pause with its start and its reason.
    """
    if type_ is None and key is None and not everything:
        print_declared(ctx, find_report("pause"), as_json=as_json)
        return
    kind, name = _pause_target(type_, key, everything)

    def begin(scheduler: Scheduler) -> str | None:
        scheduler.pause(pause_address(kind, name), for_s=for_s, why=reason)
        return is_without_effect(scheduler.reader, kind, name)

    with cohorts_of_context(ctx) as fleet:
        serving = fleet.serving(name if kind == "type" else None)
        begun = fleet.each(begin, serving)
        pauses = rows_of_all(fleet.each(pauses_of_cohort))
    warning = next(iter(begun.answers.values()), None)
    show_report(pauses, pauses_text, json=as_json)
    if warning:
        click.echo(warning, err=True)
    if begun.down:
        warn_cohorts_down(begun.down)
        ctx.exit(1)


@command("resume")
@click.argument("type_", metavar="[TYPE]", required=False)
@_KEY
@_ALL
def resume(ctx: click.Context, type_: str | None, key: str | None, everything: bool) -> None:
    """End the pause of a TYPE, of a key, or of all types, and list the remaining pauses.

    --all ends the pause of `pause --all`. Types and keys that were paused separately stay paused.
    """
    kind, name = _pause_target(type_, key, everything)
    with cohorts_of_context(ctx) as fleet:
        serving = fleet.serving(name if kind == "type" else None)
        ended = fleet.act_in_each(lambda scheduler: scheduler.resume(pause_address(kind, name)), serving)
        remaining = rows_of_all(fleet.each(pauses_of_cohort))
    warn_cohorts_down(ended.down)
    if not any(ended.answers.values()):
        others = f"paused: {', '.join(map(str, remaining))}" if remaining else "nothing is paused"
        raise click.ClickException(f"{has_no_pause(kind, name)}; {others}")
    click.echo("\n".join([f"resumed: {PauseInForce(kind, name, 0, None, '')}", *map(pause_line, remaining)]))
    if ended.down:
        ctx.exit(1)


@command("cohorts")
@click.option("--adopt", is_flag=True, help="Make the app's map the fleet's. Other processes are refused from then on.")
def cohorts(ctx: click.Context, adopt: bool) -> None:
    """Show the map of the fleet's cohorts and the app's, or make the app's map the fleet's."""
    app = ctx.obj.app
    try:
        patterns = settings_of(app).cohort_map
        with connection_of_context(ctx) as connection:
            channel = channel_on(connection, app.conf.broker_transport)
            client: Any = PersistentClient(channel.pool)  # redis-py does not specify the types of replies
            keys = channel.keys
            revision, in_force = server_info.stated_cohorts(client.get(keys.key("schema")))
            if adopt:
                _check_no_type_moves(channel, client, keys, patterns, in_force)
                revision, in_force = (
                    server_info.adopt_cohorts(client, keys, shown_cohorts(patterns)),
                    shown_cohorts(patterns),
                )
    except AffinityError as exc:
        raise click.ClickException(str(exc)) from exc
    except (OperationalError, RedisError, OSError) as exc:
        raise click.ClickException(f"a server does not answer: {exc}") from exc
    click.echo(f"fleet: {in_force or 'no cohorts'} (revision {revision})")
    click.echo(f"app:   {shown_cohorts(patterns) or 'no cohorts'}")


def _check_no_type_moves(
    channel: AffinityChannel, client: PersistentClient, keys: Keys, patterns: Patterns, in_force: str
) -> None:
    """Raise ClickException if a type's jobs or live workers are in another cohort than *patterns* has for it."""
    before = [DEFAULT, *(word.partition("=")[0] for word in in_force.split())]
    readers = {name: Reader(client, replace(keys, cohort=name)) for name in before}
    routes = channel.routes
    if routes is not None:
        readers |= {name: routes.channel_of(name).scheduler.reader for name in routes.names}
    for name, reader in readers.items():
        types = {decode_part(part) for part in (*reader.backlogs(), *reader.capacity())}
        moved = sorted(type_ for type_ in types if cohort_of(type_, patterns) != name)
        if moved:
            raise click.ClickException(
                f"cohort {name!r} has jobs or workers of types that the app's map has elsewhere: {', '.join(moved)}. "
                "Stop these workers, and let them, or a purge, end these jobs first"
            )
