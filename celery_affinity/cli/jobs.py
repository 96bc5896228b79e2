"""``celery -A proj affinity jobs``, ``cancel``, ``move``, ``prioritise``: list jobs, or change them by id or filter."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields
from typing import Any

import click

from ..admin import bulk
from ..admin.actions import JobFilters, MoveTarget, check_target_cohort
from ..admin.bulk import BulkResult, JobChoice, OnProgress, choose_jobs_in, merge_chosen
from ..admin.jobs import Change, Jobs
from ..reports import job_lists
from ..reports.job_lists import LISTED, JobsPage
from ..reports.jobs import Job
from ..reports.render import Table, mode_text, pluralize, time_text
from ..scheduler.scheduler import Scheduler
from ..schema.constants import MAX_PRIORITY
from .framework import (
    AS_JSON,
    cohorts_of_context,
    command,
    parse_seconds,
    print_json,
    show_report,
    warn_cohorts_down,
)
from .groups import DefaultListGroup

#: Moves the cursor to the start of the line, and clears the line.
_CLEAR_LINE = "\r\x1b[K"

STAMP = click.option("--stamp", metavar="NAME=VALUE", help="Only jobs with this stamp.")
KEY = click.option("--key", help="Only jobs of this key, as `keys` shows it.")


def _import_tasks(ctx: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Import the app's tasks, whose signatures contain the positions of arguments."""
    if text is not None:
        app = ctx.obj.app
        try:
            app.loader.import_default_modules()
        except Exception as exc:  # any: it is user code
            raise click.ClickException(f"--argument: the app's tasks cannot be imported: {exc!r}") from exc
    return text


ARGUMENT = click.option(
    "--argument",
    callback=_import_tasks,
    metavar="NAME=VALUE",
    help="Only calls with this argument, such as customer=17 or, by position, args[0]=17; * in VALUE stands for "
    "anything. Merged calls match if all calls of the run do.",
)
OLDER_THAN = click.option(
    "--older-than",
    "older_than_s",
    callback=parse_seconds,
    metavar="TIME",
    help="Only jobs that were enqueued at least this long ago: 90s, 30m, 2h, 1d.",
)
NEWER_THAN = click.option(
    "--newer-than",
    "newer_than_s",
    callback=parse_seconds,
    metavar="TIME",
    help="Only jobs that were enqueued at most this long ago.",
)


@click.group(cls=DefaultListGroup)
def jobs() -> None:
    """List jobs, page by page. `explain` shows more about one job, and `dead` about dead letters. `cancel`, `move`
    and `prioritise` change jobs.

    `jobs` means `jobs list`.
    """


@command("list", jobs, json=True)
@click.option("--state", type=click.Choice(LISTED), help="Only jobs in this state.")
@click.option("--type", help="Only jobs of this type.")
@click.option("--task", help="Only jobs of tasks with this name; * stands for anything.")
@STAMP
@KEY
@ARGUMENT
@OLDER_THAN
@NEWER_THAN
@click.option(
    "--limit",
    default=100,
    show_default=True,
    type=click.IntRange(1, job_lists.MAX_JOBS_READ),
    help="Number of jobs on a page.",
)
@click.option("--cursor", help="Continue from the cursor that the previous page printed.")
def list_jobs(ctx: click.Context, limit: int, cursor: str | None, as_json: bool, **given: Any) -> None:
    """List unfinished jobs and dead letters. For the next jobs in their order, see `pending`."""
    with cohorts_of_context(ctx) as fleet:
        report = Jobs(ctx.obj.app, lambda: nullcontext(fleet)).list(limit=limit, cursor=cursor, **given)
    warn_cohorts_down(report.down)
    is_filtered = any(value is not None for value in given.values())
    nothing = "no job matches" if is_filtered else "no job waits or runs, and there are no dead letters"
    show_report(report, lambda page: _page(page, nothing), json=as_json)


def _page(page: JobsPage, nothing: str) -> str:
    lines = [_JOBS.text(page.jobs) if page.jobs else nothing if page.cursor is None else f"{nothing}, so far"]
    if page.cursor is not None:
        why = f"{job_lists.MAX_JOBS_READ:,} jobs were read" if page.partial else pluralize(len(page.jobs), "job")
        lines.append(f"{why}; there may be more: --cursor {page.cursor}")
    return "\n".join(lines)


def _due(job: Job) -> str:
    if job.state != "scheduled":
        return ""
    due_s = job.due_s if job.patient_until_s is None else job.patient_until_s
    return "the next tick" if due_s is None else time_text(due_s)


_JOBS = Table[Job](
    {
        "task id": "id",
        "state": "state",
        "type": lambda job: job.type or "",
        "task": lambda job: job.task or "",
        "priority": "priority",
        "mode": lambda job: mode_text(job.mode == "on_demand"),
        "since": lambda job: time_text(job.enqueued_s or 0),
        "due": _due,
        "worker": lambda job: job.worker or "",
    },
    optional={"due": lambda job: job.state == "scheduled"},
)


def job_selection_options(states: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the arguments and options for selecting jobs in *states*."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
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
            function = option(function)
        return function

    return add


@command("cancel")
@job_selection_options(bulk.CANCELLABLE)
@click.option("--terminate", is_flag=True, help="Also end running jobs, where the pool supports it.")
def cancel(ctx: click.Context, terminate: bool, **chosen: Any) -> None:
    """Revoke jobs: waiting jobs end immediately, and claimed jobs do not start. Their callers get REVOKED.

    Give ids of tasks or jobs, or filters. With filters, the command shows the number of matching jobs and asks. Exits
    with 1 if a job that was given by id could not be revoked.
    """
    app = ctx.obj.app
    _act(
        ctx,
        chosen,
        "Cancel",
        bulk.CANCELLABLE if terminate else bulk.CANCELLABLE[:-1],
        lambda jobs, id_: jobs.cancel(id_, terminate),
        lambda scheduler, choice, on_done: bulk.cancel_jobs(app, scheduler, choice.chosen, terminate, on_done=on_done),
    )


@command("move")
@job_selection_options(bulk.MOVABLE)
@click.option("--to", "to", required=True, metavar="TYPE", help="The new type.")
def move(ctx: click.Context, to: str, **chosen: Any) -> None:
    """Change the type of waiting jobs, which keep their age. Retries have the new type, too.

    Give ids or filters, as for `cancel`. Merged calls move together. Claimed jobs are not moved.
    """
    _change(ctx, chosen, type=to)


@command("prioritise")
@job_selection_options(bulk.MOVABLE)
@click.option(
    "--priority",
    type=click.IntRange(0, MAX_PRIORITY),
    help="The new priority: 0 to 10, 10 is the highest, as `jobs` shows it.",
)
@click.option("--on-demand/--queued", default=None, help="The new mode.")
def prioritise(ctx: click.Context, priority: int | None, on_demand: bool | None, **chosen: Any) -> None:
    """Change the priority or the mode of waiting jobs, which keep their age. Retries keep the change.

    Give ids or filters, as for `cancel`.
    """
    _change(ctx, chosen, priority=priority, on_demand=on_demand)


def _change(ctx: click.Context, chosen: dict[str, Any], **wanted: Any) -> None:
    try:
        target = MoveTarget(**wanted)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    app = ctx.obj.app
    _act(
        ctx,
        chosen,
        f"To {target}: move",
        bulk.MOVABLE,
        lambda jobs, id_: jobs.change(id_, target),
        lambda scheduler, choice, on_done: bulk.move_jobs(app, scheduler, choice.chosen, target, on_done=on_done),
        target,
    )


def _act(
    ctx: click.Context,
    chosen: dict[str, Any],
    verb: str,
    states: Sequence[str],
    on_one: Callable[[Jobs, str], Change],
    on_all: Callable[[Scheduler, JobChoice, OnProgress], BulkResult],
    target: MoveTarget | None = None,
) -> None:
    """Act on the jobs with the ids in *chosen*, or, after confirmation, on all jobs that match the filters in it.

    *states*: of the jobs, if *chosen* has none. *target* is for moves only.
    """
    filters = JobFilters(**{name.name: chosen[name.name] for name in fields(JobFilters) if name.name in chosen})
    if bool(chosen["ids"]) != (filters.is_empty and not chosen["states"]):
        raise click.UsageError(
            "give ids, or some of --type, --task, --state, --older-than, --newer-than, --stamp, --key and --argument"
        )
    if chosen["ids"] and chosen["dry_run"]:
        raise click.UsageError("--dry-run shows what a filter finds; `explain` says where a job is")
    app = ctx.obj.app
    with cohorts_of_context(ctx) as fleet:
        if chosen["ids"]:
            jobs = Jobs(app, lambda: nullcontext(fleet))
            _show_changes(ctx, [on_one(jobs, id_.strip()) for id_ in chosen["ids"]], chosen["as_json"])
            return
        names, states = fleet.serving(filters.type), chosen["states"] or states
        with _progress("jobs found") as on_read:
            choices = choose_jobs_in(fleet, lambda reader: filters.of(app, reader), names, states, on_read=on_read)
        warn_cohorts_down(choices.down)
        choice = merge_chosen(choices, fleet.is_split)
        done, down = BulkResult(0, {}), dict(choices.down)
        if not chosen["as_json"]:
            _show_choice(choice)
        if choice.chosen and not chosen["dry_run"]:
            if not chosen["yes"]:
                click.confirm(f"{verb} {_choice_text(choice)}?", abort=True, err=True)
            check_target_cohort(app, target, [name for name, chosen_in in choices.answers.items() if chosen_in.chosen])
            with _progress(f"of {_choice_text(choice)} processed") as on_done:
                done, lost = bulk.run_in_cohorts(
                    fleet, choices, lambda scheduler, chosen_in: on_all(scheduler, chosen_in, on_done)
                )
            warn_cohorts_down(lost)
            down |= lost
    if chosen["as_json"]:
        print_json({"found": len(choice.chosen), "calls": choice.calls, **done._asdict()})
    elif chosen["dry_run"] or not choice.chosen:
        click.echo(f"{_choice_text(choice)} found; nothing was done")
    else:
        _show_done(done)
    if down:
        ctx.exit(1)


@contextmanager
def _progress(what: str) -> Iterator[OnProgress]:
    """Yield a function that adds a number of jobs. Prints the sum once a second if the error output is a terminal."""
    number, printed_s, is_printed = 0, time.monotonic(), False

    def add(jobs: int) -> None:
        nonlocal number, printed_s, is_printed
        number += jobs
        if sys.stderr.isatty() and time.monotonic() - printed_s >= 1:
            click.echo(f"{_CLEAR_LINE}{number:,} {what}", nl=False, err=True)
            printed_s, is_printed = time.monotonic(), True

    try:
        yield add
    finally:
        if is_printed:
            click.echo(_CLEAR_LINE, nl=False, err=True)


def _choice_text(choice: JobChoice) -> str:
    jobs = pluralize(len(choice.chosen), "job")
    return f"{jobs} of {choice.calls} calls" if choice.calls > len(choice.chosen) else jobs


def _show_choice(choice: JobChoice) -> None:
    if choice.shown:
        click.echo(_JOBS.text(choice.shown))
    if len(choice.chosen) > len(choice.shown):
        click.echo(f"... and {len(choice.chosen) - len(choice.shown):,} more")


def _show_done(done: BulkResult) -> None:
    others = "".join(f"; {number} unchanged: now {state}" for state, number in done.left.items())
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
