"""``celery -A proj affinity jobs ...``: list jobs in every state that has a list."""

from collections.abc import Sequence

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..observe import cohorts, job_lists
from ..observe.job_filter import LISTED
from ..observe.job_lists import JobsPage
from ..observe.jobs import Job
from ..operate.filters import Filters
from .broker import AS_JSON, fleet_of, say_down, show
from .lists_by_default import ListsByDefault
from .times import seconds
from .words import by_cohort, many, mode, moment

STAMP = click.option("--stamp", metavar="NAME=VALUE", help="Only jobs with this stamp.")
KEY = click.option("--key", help="Only jobs of this key, as `keys` shows it.")


def _with_tasks(ctx: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Import the app's tasks: they say which position an argument has."""
    if text is not None:
        app = ctx.obj.app
        try:
            app.loader.import_default_modules()
        except Exception as exc:  # any: it is the user's code
            raise click.ClickException(f"--argument: the app's tasks cannot be imported: {exc!r}") from exc
    return text


ARGUMENT = click.option(
    "--argument",
    callback=_with_tasks,
    metavar="NAME=VALUE",
    help="Only calls with this argument, such as customer=17 or, by position, args[0]=17; * in VALUE stands for "
    "anything. Merged calls match if all calls of the run do.",
)
OLDER_THAN = click.option(
    "--older-than",
    "older_than_s",
    callback=seconds,
    metavar="TIME",
    help="Only jobs that were enqueued at least this long ago: 90s, 30m, 2h, 1d.",
)
NEWER_THAN = click.option(
    "--newer-than",
    "newer_than_s",
    callback=seconds,
    metavar="TIME",
    help="Only jobs that were enqueued at most this long ago.",
)


@click.group(cls=ListsByDefault)
def jobs() -> None:
    """List jobs, page by page. `explain` shows more about one job, and `dead` about dead letters. `cancel`, `move`
    and `prioritise` change jobs.

    `jobs` alone means `jobs list`.
    """


@jobs.command("list", cls=CeleryCommand)
@click.option("--state", type=click.Choice(LISTED), help="Only jobs in this state.")
@click.option("--type", help="Only jobs of this type.")
@click.option("--task", help="Only jobs of tasks with this name; * stands for anything.")
@STAMP
@KEY
@ARGUMENT
@OLDER_THAN
@NEWER_THAN
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, job_lists.MOST), help="Number of jobs on a page."
)
@click.option("--cursor", help="Continue from the cursor that the previous page printed.")
@AS_JSON
@click.pass_context
@handle_preload_options
def list_jobs(
    ctx: click.Context,
    state: str | None,
    type: str | None,
    task: str | None,
    stamp: str | None,
    key: str | None,
    argument: str | None,
    older_than_s: float | None,
    newer_than_s: float | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List unfinished jobs and dead letters. For the next jobs in their order, see `pending`."""
    with fleet_of(ctx) as fleet:
        filters = Filters(state, type, task, stamp, key, older_than_s, newer_than_s, argument)
        names = fleet.serving(type)
        found = cohorts.page_of(fleet, lambda reader: filters.of(ctx.obj.app, reader), names, limit, cursor)
    say_down(found.down)
    nothing = "no job waits or runs, and there are no dead letters" if filters.is_empty else "no job matches"
    show(found, lambda page: _page(page, nothing), json=as_json)


def _page(page: JobsPage, nothing: str) -> str:
    lines = [table_of(page.jobs) if page.jobs else nothing if page.cursor is None else f"{nothing}, so far"]
    if page.cursor is not None:
        why = f"{job_lists.MOST:,} jobs were read" if page.partial else many(len(page.jobs), "job")
        lines.append(f"{why}; there may be more: --cursor {page.cursor}")
    return "\n".join(lines)


def table_of(found: Sequence[Job]) -> str:
    """Return jobs as a table, with a column for the times at which scheduled jobs are due if there are some."""
    is_any_due = any(each.state == "scheduled" for each in found)
    rows = [
        (
            each.id,
            each.state,
            each.type or "",
            each.task or "",
            str(each.priority),
            mode(each.mode == "on_demand"),
            moment(each.enqueued_s or 0),
            *([_due(each)] if is_any_due else []),
            each.worker or "",
        )
        for each in found
    ]
    due = ["due"] if is_any_due else []
    return by_cohort(found, ("task id", "state", "type", "task", "priority", "mode", "since", *due, "worker"), rows)


def _due(job: Job) -> str:
    if job.state != "scheduled":
        return ""
    due_s = job.due_s if job.patient_until_s is None else job.patient_until_s
    return "the next tick" if due_s is None else moment(due_s)
