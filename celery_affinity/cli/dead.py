"""``celery -A proj affinity dead ...``: list, replay or drop dead letters: jobs that will not run again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from ..admin.job_values import hidden_reason
from ..reports import dead_letters
from ..reports.dead_letters import DeadLetter, LetterDetails, LetterFilter
from ..reports.render import Row, pluralize, time_text, wrap_paragraph
from ..reports.report import find_report, with_cohort_name
from ..scheduler.scheduler import Scheduler
from .framework import (
    answers_of,
    cohorts_of_context,
    command,
    print_json,
    report_command,
    show_report,
    warn_cohorts_down,
)
from .groups import SuggestingGroup


def letter_text(shown: LetterDetails) -> str:
    """Return a dead letter as a few lines."""
    letter = shown.letter
    is_gone = "gone: the server no longer has it, so the job cannot be replayed"
    message = f"{shown.message_bytes:,} bytes" if letter.replayable else is_gone
    deliveries = f", after {pluralize(letter.deliveries, 'unfinished attempt')}" if letter.deliveries else ""
    rows: list[Row] = [
        ("task", f"{letter.task_id}  {letter.task}"),
        ("job", letter.job_id),
        ("cohort", letter.cohort),
        ("type", letter.type),
        ("reason", f"{letter.reason} at {time_text(letter.ended_s)}{deliveries}"),
        ("why", letter.why or None),
        ("calls", f"{letter.calls}, which shared the run; of the oldest:" if letter.calls > 1 else None),
        ("published", time_text(shown.enqueued_s)),
        ("message", message),
        *((name, str(value)) for name, value in shown.headers.items()),
    ]
    return wrap_paragraph(rows)


@click.group(cls=SuggestingGroup)
def dead() -> None:
    """List, replay or drop dead letters: jobs that will not run again."""


dead.add_command(report_command("dead list"))
#: The options that select letters.
_FILTERS = [param for param in find_report("dead list").params if param.name != "limit"]


@command("show", dead, json=True)
@click.argument("id_", metavar="ID")
def show_dead(ctx: click.Context, id_: str, as_json: bool) -> None:
    """Show a dead letter, by the id of its task or of its job, with the arguments of the call."""
    hidden = hidden_reason(ctx.obj.app)
    answers = answers_of(ctx, lambda scheduler: dead_letters.shown_letter(scheduler.reader, id_, hidden))
    shown = [
        replace(one, letter=letter)
        for name, details in answers.answers.items()
        for one in details
        for letter in (with_cohort_name([one.letter], name) if answers.is_split else [one.letter])
    ]
    if not shown:
        raise click.ClickException(f"no dead letter has the task id or job id {id_!r}")
    show_report(shown, lambda shown: "\n\n".join(map(letter_text, shown)), json=as_json)


_ALL = click.option("--all", "all_", is_flag=True, help="All dead letters.")
_FAILED = click.option("--failed", is_flag=True, help="The failed jobs that affinity_keep keeps, not dead letters.")
_IDS = click.argument("ids", metavar="[ID]...", nargs=-1)


def _checked_filter(ids: tuple[str, ...], all_: bool, filters: dict[str, Any]) -> LetterFilter:
    letter_filter = LetterFilter(ids, **filters)
    if letter_filter.is_empty != all_:
        raise click.UsageError("give ids of tasks or jobs, filters, or --all")
    return letter_filter


@command("replay", dead, json=True, params=_FILTERS)
@_IDS
@_ALL
@_FAILED
def replay_dead(
    ctx: click.Context, ids: tuple[str, ...], all_: bool, failed: bool, as_json: bool, **filters: Any
) -> None:
    """Run dead letters again, as if they were published now.

    An id can also name a failed job that affinity_keep keeps. Its message is kept up to 16,384 bytes. Lost jobs
    may have done their work before their worker died: they are replayed only by id or with --reason lost.
    Exits with 1 if a job that was given by id could not be replayed.
    """
    letter_filter = _checked_filter(ids, all_, filters)

    def find(scheduler: Scheduler, which: LetterFilter) -> list[DeadLetter]:
        kinds = [True] if failed else [False, True] if ids else [False]
        return [letter for kind in kinds for letter in dead_letters.find_letters(scheduler.reader, which, failed=kind)]

    def replay(scheduler: Scheduler) -> tuple[list[DeadLetter], list[DeadLetter], list[str], list[str]]:
        letters = find(scheduler, letter_filter)
        unknown = [id_ for id_ in ids if not find(scheduler, replace(letter_filter, ids=(id_,)))]
        may_be_lost = letter_filter.ids or letter_filter.reason == "lost"
        replayable = [letter for letter in letters if letter.reason != "lost" or may_be_lost]
        return letters, replayable, unknown, scheduler.replay([letter.job_id for letter in replayable])

    answers = answers_of(ctx, replay, once=True)
    done = list(answers.answers.values()) or [([], [], [], [])]
    letters, replayable, _, replayed = ([item for part in parts for item in part] for parts in zip(*done, strict=True))
    unknown = _unknown_everywhere([part[2] for part in done])
    remaining = [letter.job_id for letter in letters if letter.job_id not in replayed]
    if as_json:
        print_json({"replayed": replayed, "left": remaining, "unknown": unknown})
    else:
        click.echo(f"{len(replayed)} replayed")
        lost = len(letters) - len(replayable)
        if lost:
            click.echo(
                f"{lost} not replayed: lost with their worker, maybe after their work; --reason lost replays them too"
            )
        if len(remaining) > lost:
            click.echo(f"{len(remaining) - lost} not replayed: their messages were deleted")
    _exit_if_failed(ctx, unknown, failed=bool(ids and remaining) or bool(answers.down))


@command("drop", dead, json=True, params=_FILTERS)
@_IDS
@_ALL
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def drop_dead(ctx: click.Context, ids: tuple[str, ...], all_: bool, yes: bool, as_json: bool, **filters: Any) -> None:
    """Delete dead letters permanently.

    Exits with 1 if an id names no dead letter.
    """
    letter_filter = _checked_filter(ids, all_, filters)

    def find(scheduler: Scheduler) -> tuple[list[str], list[str]]:
        job_ids = [letter.job_id for letter in dead_letters.find_letters(scheduler.reader, letter_filter)]
        return job_ids, dead_letters.letter_not_found(scheduler.reader, letter_filter)

    with cohorts_of_context(ctx) as fleet:
        answers = fleet.each(find, is_long=True)
        warn_cohorts_down(answers.down)
        number = sum(len(job_ids) for job_ids, _ in answers.answers.values())
        if number and not yes:
            click.confirm(f"Delete {number} dead letters for good?", abort=True, err=True)
        by_cohort = {name: job_ids for name, (job_ids, _) in answers.answers.items() if job_ids}
        ended = fleet.act_in_each(lambda scheduler: scheduler.drop(by_cohort[scheduler.keys.cohort]), by_cohort)
        warn_cohorts_down(ended.down)
        dropped = sum(ended.answers.values())
    unknown = _unknown_everywhere([part[1] for part in answers.answers.values()])
    if as_json:
        print_json({"dropped": dropped, "unknown": unknown})
    else:
        click.echo(f"{dropped} dropped")
    _exit_if_failed(ctx, unknown, failed=bool(answers.down or ended.down))


def _unknown_everywhere(unknown: Sequence[Sequence[str]]) -> list[str]:
    """Return the ids that are unknown in every cohort."""
    return [id_ for id_ in unknown[0] if all(id_ in ids for ids in unknown)]


def _exit_if_failed(ctx: click.Context, unknown: Sequence[str], *, failed: bool = False) -> None:
    """Exit with 1 if the command *failed*, or after printing each id in *unknown*."""
    for id_ in unknown:
        click.echo(f"no dead letter that matches has the task id or job id {id_!r}", err=True)
    if unknown or failed:
        ctx.exit(1)
