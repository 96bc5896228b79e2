"""``celery -A proj affinity jobs ...``: list jobs in every state that has a list, and cancel one."""

from collections.abc import Sequence

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..observe import job_lists
from ..observe.job_lists import Filter, Page
from ..observe.jobs import Job
from ..operate.jobs import Jobs
from .broker import AS_JSON, print_json, reader_of, scheduler_of, show
from .lists_by_default import ListsByDefault
from .words import many, mode, moment, table


@click.group(cls=ListsByDefault)
def jobs() -> None:
    """List jobs, page by page; cancel one. `explain` says more of one job, `dead` of those that are dead.

    `jobs` is `jobs list`.
    """


@jobs.command("list", cls=CeleryCommand)
@click.option("--state", type=click.Choice(job_lists.LISTED), help="Only jobs in this state.")
@click.option("--type", help="Only jobs of this type.")
@click.option("--task", help="Only of tasks of this name; * stands for anything.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, job_lists.MOST), help="Jobs on a page.")
@click.option("--cursor", help="Go on where another page ended, which says its cursor.")
@AS_JSON
@click.pass_context
@handle_preload_options
def list_jobs(
    ctx: click.Context,
    state: str | None,
    type: str | None,
    task: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List the jobs that have not ended, and the dead letters; `pending` has those that are next, in their order."""
    with reader_of(ctx) as reader:
        found = job_lists.page_of(reader, Filter(state, type, task), limit, cursor)
    show(found, _page, json=as_json)


@jobs.command("cancel", cls=CeleryCommand)
@click.argument("id_", metavar="ID")
@click.option("--terminate", is_flag=True, help="End it if it runs, where the pool can.")
@AS_JSON
@click.pass_context
@handle_preload_options
def cancel(ctx: click.Context, id_: str, terminate: bool, as_json: bool) -> None:
    """Revoke a job: one that waits ends at once, one that a worker holds does not start.

    Ends with 1 if nothing was done.
    """
    with scheduler_of(ctx):  # says what is wrong with the broker, if something is
        change = Jobs(ctx.obj.app).cancel(id_.strip(), terminate)
    if as_json:
        print_json({"id": change.id, "found": change.found, "done": change.done, "note": change.note})
    else:
        click.echo(f"{change.id} ({change.found}): {change.note}")
    if not change.done:
        ctx.exit(1)


def _page(page: Page) -> str:
    lines = [_table(page.jobs)] if page.jobs else ["no such job" if page.cursor is None else "no such job so far"]
    if page.cursor is not None:
        why = f"{job_lists.MOST:,} jobs were read" if page.partial else many(len(page.jobs), "job")
        lines.append(f"{why}; there may be more: --cursor {page.cursor}")
    return "\n".join(lines)


def _table(found: Sequence[Job]) -> str:
    rows = [
        (
            each.id,
            each.state,
            each.type or "",
            each.task or "",
            str(each.priority),
            mode(each.mode == "on_demand"),
            moment(each.enqueued_s or 0),
            each.worker or "",
        )
        for each in found
    ]
    return table(("task id", "state", "type", "task", "priority", "mode", "since", "worker"), rows)
