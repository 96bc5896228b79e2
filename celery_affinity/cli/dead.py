"""The output of ``celery affinity dead`` for people.

``celery -A proj affinity dead ...``: look at jobs that will not run again, replay them, or drop them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..admin.job_values import hidden_reason
from ..reports import cohorts, dead_letters
from ..reports.dead_letters import DeadLetter, LetterDetails, LetterFilter
from ..scheduler.scheduler import Scheduler
from ..schema.constants import REASONS
from .framework import (
    AS_JSON,
    COUNT,
    answers_of,
    cohorts_of_context,
    parse_seconds,
    print_json,
    rows_of_cohorts,
    show_report,
    warn_cohorts_down,
)
from .render import pluralize, time_text, with_cohort_column, wrap_paragraph

#: Largest number of characters of an error in a table.
_WHY_IN_A_ROW = 80


def letters_text(found: Sequence[DeadLetter], *, is_filtered: bool = False) -> str:
    """Return dead letters as a table."""
    if not found:
        return "no dead letter matches" if is_filtered else "there are no dead letters"
    is_any_merged = any(each.calls > 1 for each in found)
    return with_cohort_column(
        found,
        ("ended", "reason", *(["calls"] if is_any_merged else []), "type", "task", "task id", "why"),
        [_letter_row(letter, is_any_merged) for letter in found],
    )


def _letter_row(letter: DeadLetter, has_calls: bool) -> tuple[str, ...]:
    why = letter.why or ""
    if len(why) > _WHY_IN_A_ROW:
        why = f"{why[:_WHY_IN_A_ROW]}..."
    calls = [str(letter.calls)] if has_calls else []
    return time_text(letter.ended_s), letter.reason, *calls, letter.type, letter.task, letter.task_id, why


def letter_text(shown: LetterDetails) -> str:
    """Return a dead letter as a few lines."""
    found = shown.letter
    is_gone = "gone: the server no longer has it, so the job cannot be replayed"
    message = f"{shown.message_bytes:,} bytes" if found.replayable else is_gone
    rows = [
        ("task", f"{found.task_id}  {found.task}"),
        ("job", found.job_id),
        *([("cohort", found.cohort)] if found.cohort else []),
        ("type", found.type),
        ("reason", f"{found.reason} at {time_text(found.ended_s)}{_came_back(found.deliveries)}"),
        *([("why", found.why)] if found.why else []),
        *([("calls", f"{found.calls}, which shared the run; of the oldest:")] if found.calls > 1 else []),
        ("published", time_text(shown.enqueued_s)),
        ("message", message),
        *((name, str(value)) for name, value in shown.headers.items()),
    ]
    return wrap_paragraph(rows)


def _came_back(deliveries: int) -> str:
    return f", after it came back {pluralize(deliveries, 'time')}" if deliveries else ""


@click.group()
def dead() -> None:
    """List, replay or drop dead letters: jobs that will not run again."""


class _LetterOptions(TypedDict):
    """The options that choose letters: fields of `LetterFilter`."""

    reason: str | None
    type: str | None
    task: str | None
    older_than_s: float | None


def _filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose letters."""
    for option in (
        click.option(
            "--older-than",
            "older_than_s",
            callback=parse_seconds,
            metavar="TIME",
            help="Only jobs that ended at least this long ago: 90s, 30m, 2h, 1d.",
        ),
        click.option("--task", help="Only jobs of tasks with this name; * stands for anything."),
        click.option("--type", help="Only jobs of this type."),
        click.option("--reason", type=click.Choice(tuple(REASONS)), help="Only letters with this reason."),
    ):
        command = option(command)
    return command


@dead.command("list", cls=CeleryCommand)
@_filters
@click.option("--limit", default=100, show_default=True, type=COUNT, help="Largest number to show.")
@AS_JSON
@click.pass_context
@handle_preload_options
def list_dead(ctx: click.Context, limit: int, as_json: bool, **chosen: Unpack[_LetterOptions]) -> None:
    """List dead letters, the newest first."""
    found = rows_of_cohorts(
        ctx, lambda scheduler: dead_letters.find_letters(scheduler.reader, LetterFilter(**chosen), limit)
    )
    found = sorted(found, key=lambda each: each.ended_s, reverse=True)[:limit]
    show_report(found, lambda found: letters_text(found, is_filtered=any(chosen.values())), json=as_json)


@dead.command("show", cls=CeleryCommand)
@click.argument("id_", metavar="ID")
@AS_JSON
@click.pass_context
@handle_preload_options
def show_dead(ctx: click.Context, id_: str, as_json: bool) -> None:
    """Show a dead letter, by the id of its task or of its job, with the arguments of the call."""
    hidden = hidden_reason(ctx.obj.app)
    asked = answers_of(ctx, lambda scheduler: dead_letters.shown_letter(scheduler.reader, id_, hidden))
    shown = [
        replace(each, letter=letter)
        for name, its in asked.answers.items()
        for each in its
        for letter in (cohorts.with_cohort_name([each.letter], name) if asked.is_split else [each.letter])
    ]
    if not shown:
        raise click.ClickException(f"no dead letter has the task id or job id {id_!r}")
    show_report(shown, lambda shown: "\n\n".join(map(letter_text, shown)), json=as_json)


_ALL = click.option("--all", "all_", is_flag=True, help="All dead letters.")
_IDS = click.argument("ids", metavar="[ID]...", nargs=-1)


def _filter_of(ids: tuple[str, ...], all_: bool, chosen: _LetterOptions) -> LetterFilter:
    which = LetterFilter(ids, **chosen)
    if which.is_empty != all_:
        raise click.UsageError("give ids of tasks or jobs, filters, or --all")
    return which


@dead.command("replay", cls=CeleryCommand)
@_IDS
@_filters
@_ALL
@AS_JSON
@click.pass_context
@handle_preload_options
def replay_dead(
    ctx: click.Context, ids: tuple[str, ...], all_: bool, as_json: bool, **chosen: Unpack[_LetterOptions]
) -> None:
    """Run dead letters again, as if they were published now.

    Lost jobs may have done their work before their worker died: they are replayed only by id or with --reason lost.
    Exits with 1 if a job that was given by id could not be replayed.
    """
    which = _filter_of(ids, all_, chosen)

    def replay(scheduler: Scheduler) -> tuple[list[DeadLetter], list[DeadLetter], list[str], list[str]]:
        found = dead_letters.find_letters(scheduler.reader, which)
        unknown = dead_letters.letter_not_found(scheduler.reader, which)
        meant = [letter for letter in found if letter.reason != "lost" or which.ids or which.reason == "lost"]
        return found, meant, unknown, scheduler.replay([letter.job_id for letter in meant])

    asked = answers_of(ctx, replay, once=True)
    done = list(asked.answers.values()) or [([], [], [], [])]
    found, meant, _, replayed = ([each for part in parts for each in part] for parts in zip(*done, strict=True))
    unknown = _in_all([part[2] for part in done])
    left = [letter.job_id for letter in found if letter.job_id not in replayed]
    if as_json:
        print_json({"replayed": replayed, "left": left, "unknown": unknown})
    else:
        click.echo(f"{len(replayed)} replayed")
        lost = len(found) - len(meant)
        if lost:
            click.echo(
                f"{lost} left: lost with their worker, they may have done their work; --reason lost runs them as well"
            )
        if len(left) > lost:
            click.echo(f"{len(left) - lost} left: their messages are gone")
    _end(ctx, unknown, failed=bool(ids and left) or bool(asked.down))


@dead.command("drop", cls=CeleryCommand)
@_IDS
@_filters
@_ALL
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@AS_JSON
@click.pass_context
@handle_preload_options
def drop_dead(
    ctx: click.Context, ids: tuple[str, ...], all_: bool, yes: bool, as_json: bool, **chosen: Unpack[_LetterOptions]
) -> None:
    """Delete dead letters permanently.

    Exits with 1 if an id names no dead letter.
    """
    which = _filter_of(ids, all_, chosen)

    def find(scheduler: Scheduler) -> tuple[list[str], list[str]]:
        found = [letter.job_id for letter in dead_letters.find_letters(scheduler.reader, which)]
        return found, dead_letters.letter_not_found(scheduler.reader, which)

    with cohorts_of_context(ctx) as fleet:
        asked = fleet.each(find, is_long=True)
        warn_cohorts_down(asked.down)
        number = sum(len(found) for found, _ in asked.answers.values())
        if number and not yes:
            click.confirm(f"Delete {number} dead letters for good?", abort=True, err=True)
        its = {name: found for name, (found, _) in asked.answers.items() if found}
        ended = fleet.act_in_each(lambda scheduler: scheduler.drop(its[scheduler.keys.cohort]), its)
        warn_cohorts_down(ended.down)
        dropped = sum(ended.answers.values())
    unknown = _in_all([part[1] for part in asked.answers.values()])
    if as_json:
        print_json({"dropped": dropped, "unknown": unknown})
    else:
        click.echo(f"{dropped} dropped")
    _end(ctx, unknown, failed=bool(asked.down or ended.down))


def _in_all(unknown: Sequence[Sequence[str]]) -> list[str]:
    """Return the ids that are unknown in each cohort."""
    return [id_ for id_ in unknown[0] if all(id_ in its for its in unknown)]


def _end(ctx: click.Context, unknown: Sequence[str], *, failed: bool = False) -> None:
    """End the command with 1 if an id that was given names no dead letter, and say so, or if the command *failed*."""
    for id_ in unknown:
        click.echo(f"no dead letter that matches has the task id or job id {id_!r}", err=True)
    if unknown or failed:
        ctx.exit(1)
