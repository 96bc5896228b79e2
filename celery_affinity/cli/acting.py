"""``celery -A proj affinity cancel``, ``move`` and ``prioritise``: act on jobs by id, or on all that match."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, TypedDict, Unpack

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..operate import many_jobs
from ..operate.choosing import Choice, choose_in, together
from ..operate.filters import Filters
from ..operate.jobs import Change, Jobs
from ..operate.many_jobs import Done
from ..operate.moving import Move, check_cohort
from ..rules.protocol import MAX_PRIORITY
from ..server.scheduler import Scheduler
from .broker import AS_JSON, fleet_of, print_json, say_down
from .jobs import ARGUMENT, KEY, NEWER_THAN, OLDER_THAN, STAMP, table_of
from .words import many

#: States of jobs that can be moved, and cancelled.
_WAIT = ("pending", "scheduled")
_HAVE_NOT_ENDED = (*_WAIT, "claimed", "running")


class _Chosen(TypedDict):
    """The options of all these commands."""

    ids: tuple[str, ...]
    type: str | None
    task: str | None
    states: tuple[str, ...]
    older_than_s: float | None
    newer_than_s: float | None
    stamp: str | None
    key: str | None
    argument: str | None
    dry_run: bool
    yes: bool
    as_json: bool


def _acts_on(states: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what adds the arguments and options that choose jobs of *states*."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            AS_JSON,
            click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
            click.option(
                "--dry-run", is_flag=True, help="Show the number of matching jobs and some of them; change nothing."
            ),
            STAMP,
            KEY,
            ARGUMENT,
            NEWER_THAN,
            OLDER_THAN,
            click.option(
                "--state",
                "states",
                multiple=True,
                type=click.Choice(states),
                help="Only jobs in this state. Can be repeated.",
            ),
            click.option("--task", help="Only jobs of tasks with this name; * stands for anything."),
            click.option("--type", help="Only jobs of this type."),
            click.argument("ids", metavar="[ID]...", nargs=-1),
        ):
            command = option(command)
        return command

    return add


@click.command(cls=CeleryCommand)
@_acts_on(_HAVE_NOT_ENDED)
@click.option("--terminate", is_flag=True, help="Also end running jobs, where the pool supports it.")
@click.pass_context
@handle_preload_options
def cancel(ctx: click.Context, terminate: bool, **chosen: Unpack[_Chosen]) -> None:
    """Revoke jobs: waiting jobs end at once, and claimed jobs do not start. Their callers get REVOKED.

    Give ids of tasks or jobs, or filters. With filters, the command shows the number of matching jobs and asks. Exits
    with 1 if a job that was given by id could not be revoked.
    """
    app = ctx.obj.app
    states = chosen["states"] or (_HAVE_NOT_ENDED if terminate else _HAVE_NOT_ENDED[:-1])
    _act(
        ctx,
        chosen,
        "Cancel",
        states,
        lambda jobs, id_: jobs.cancel(id_, terminate),
        lambda scheduler, choice: many_jobs.cancel(app, scheduler, choice.chosen, terminate),
    )


@click.command(cls=CeleryCommand)
@_acts_on(_WAIT)
@click.option("--to", "to", required=True, metavar="TYPE", help="The new type.")
@click.pass_context
@handle_preload_options
def move(ctx: click.Context, to: str, **chosen: Unpack[_Chosen]) -> None:
    """Change the type of waiting jobs, which keep their age. Retries have the new type, too.

    Give ids or filters, as for `cancel`. Merged calls move together. Claimed jobs are not moved.
    """
    _change(ctx, chosen, lambda: Move(type=to))


@click.command(cls=CeleryCommand)
@_acts_on(_WAIT)
@click.option(
    "--priority",
    type=click.IntRange(0, MAX_PRIORITY),
    help="The new priority: 0 to 10, 10 is the highest, as `jobs` shows it.",
)
@click.option("--on-demand/--queued", default=None, help="The new mode.")
@click.pass_context
@handle_preload_options
def prioritise(ctx: click.Context, priority: int | None, on_demand: bool | None, **chosen: Unpack[_Chosen]) -> None:
    """Change the priority or the mode of waiting jobs, which keep their age. Retries keep the change.

    Give ids or filters, as for `cancel`.
    """
    _change(ctx, chosen, lambda: Move(priority=priority, on_demand=on_demand))


def _change(ctx: click.Context, chosen: _Chosen, wished: Callable[[], Move]) -> None:
    try:
        wish = wished()
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    app = ctx.obj.app
    _act(
        ctx,
        chosen,
        f"To {wish}: move",
        chosen["states"] or _WAIT,
        lambda jobs, id_: jobs.change(id_, wish),
        lambda scheduler, choice: many_jobs.move(app, scheduler, choice.chosen, wish),
        wish,
    )


def _act(
    ctx: click.Context,
    chosen: _Chosen,
    verb: str,
    states: Sequence[str],
    on_one: Callable[[Jobs, str], Change],
    on_all: Callable[[Scheduler, Choice], Done],
    wish: Move | None = None,
) -> None:
    """Act on the jobs that are named, or, after a question, on all that match. *wish*: what they are to have."""
    filters = Filters(
        type=chosen["type"],
        task=chosen["task"],
        stamp=chosen["stamp"],
        key=chosen["key"],
        older_than_s=chosen["older_than_s"],
        newer_than_s=chosen["newer_than_s"],
        argument=chosen["argument"],
    )
    if bool(chosen["ids"]) != (filters.is_empty and not chosen["states"]):
        raise click.UsageError(
            "give ids, or some of --type, --task, --state, --older-than, --newer-than, --stamp, --key and --argument"
        )
    if chosen["ids"] and chosen["dry_run"]:
        raise click.UsageError("--dry-run shows what a filter finds; `explain` says where a job is")
    app = ctx.obj.app
    with fleet_of(ctx) as fleet:
        if chosen["ids"]:
            jobs = Jobs(app, lambda: nullcontext(fleet))
            _show_changes(ctx, [on_one(jobs, id_.strip()) for id_ in chosen["ids"]], chosen["as_json"])
            return
        asked = choose_in(fleet, lambda reader: filters.of(app, reader), fleet.serving(filters.type), states)
        say_down(asked.down)
        choice = together(asked, fleet.is_split)
        done, down = Done(0, {}), dict(asked.down)
        if not chosen["as_json"]:
            _show_choice(choice)
        if choice.chosen and not chosen["dry_run"]:
            if not chosen["yes"]:
                click.confirm(f"{verb} {_in_words(choice)}?", abort=True, err=True)
            check_cohort(app, wish, [name for name, each in asked.answers.items() if each.chosen])
            done, lost = many_jobs.in_each(fleet, asked, on_all)
            say_down(lost)
            down |= lost
    if chosen["as_json"]:
        print_json({"found": len(choice.chosen), "calls": choice.calls, **done._asdict()})
    elif chosen["dry_run"] or not choice.chosen:
        click.echo(f"{_in_words(choice)} found; nothing was done")
    else:
        _show_done(done)
    if down:
        ctx.exit(1)


def _in_words(choice: Choice) -> str:
    jobs = many(len(choice.chosen), "job")
    return f"{jobs} of {choice.calls} calls" if choice.calls > len(choice.chosen) else jobs


def _show_choice(choice: Choice) -> None:
    if choice.shown:
        click.echo(table_of(choice.shown))
    if len(choice.chosen) > len(choice.shown):
        click.echo(f"... and {len(choice.chosen) - len(choice.shown):,} more")


def _show_done(done: Done) -> None:
    others = "".join(f"; {number} left: {state} by now" for state, number in done.left.items())
    click.echo(f"{done.done} done{others}")
    if done.warning:
        click.echo(done.warning, err=True)


def _show_changes(ctx: click.Context, changes: Sequence[Change], as_json: bool) -> None:
    if as_json:
        print_json([asdict(change) for change in changes])
    else:
        for change in changes:
            click.echo(f"{change.id} ({change.found}): {change.note}")
    if not all(change.done for change in changes):
        ctx.exit(1)
