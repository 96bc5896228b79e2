"""``celery -A proj affinity explain`` and ``top``: one job, and the live state of the fleet."""

import time
from contextlib import suppress

import click

from ..admin import job_values
from ..clock import SECOND_US
from ..publishing.app_config import settings_of
from ..reports import cohorts
from ..reports.explain import Explanation
from ..reports.fleet_status import status_of_all, status_text
from ..reports.jobs import Job
from ..reports.json import as_json as as_json_of
from ..reports.queue_order import NEXT_JOBS, next_jobs_of_all
from ..reports.render import Table, duration_text
from ..transport.app_api import stock_lists_of
from . import explain_text
from .framework import COUNT, SecondsRange, cohorts_of_context, command, show_report, warn_cohorts_down


def _held_table(now_s: float) -> Table[Job]:
    """Return the table of the jobs that workers hold at *now_s*."""
    return Table(
        {
            "worker": lambda job: job.worker or "",
            "for": lambda job: duration_text(max(0.0, now_s - _since_s(job, now_s))),
            "type": lambda job: job.type or "",
            "task": lambda job: job.task or "",
            "task id": "id",
            "": lambda job: "" if job.state == "running" else "claimed",
        },
        empty="no worker holds a job",
    )


def _since_s(job: Job, now_s: float) -> float:
    return job.started_s or job.claimed_s or now_s


_LIMIT = click.option("--limit", default=20, show_default=True, type=COUNT, help="Maximum number to show.")


@command("explain", json=True)
@click.argument("task_id")
@click.option(
    "--values", "with_values", is_flag=True, help="Show arguments, and the result or traceback, if they are stored."
)
def explain(ctx: click.Context, task_id: str, with_values: bool, as_json: bool) -> None:
    """Show where a task is and, if it waits, why and for how long.

    Exits with 1 if the task is unknown.
    """
    wanted = task_id.strip()  # ids copied from a log have blanks around them
    hidden = job_values.hidden_reason(ctx.obj.app) if with_values else None
    if hidden:
        raise click.UsageError(f"--values: {hidden}")
    with cohorts_of_context(ctx) as fleet:
        job = cohorts.explain_in_all(fleet, wanted, stock_lists_of(ctx.obj.app))
        values = job_values.message_arguments(fleet, job) if with_values else None
    if values is None:
        show_report(job, explain_text.explanation_text, json=as_json)
    else:
        _show_with_values(job_values.with_result(ctx.obj.app, wanted, values), job, as_json)
    if job.state == "unknown":
        ctx.exit(1)


def _show_with_values(values: job_values.JobValues, job: Explanation, as_json: bool) -> None:
    shown = as_json_of(job)
    assert isinstance(shown, dict)
    text = f"{explain_text.explanation_text(job)}\n\n{explain_text.values_text(values)}"
    show_report({**shown, "values": values}, lambda _: text, json=as_json)


@command("top")
@_LIMIT
@click.option(
    "--interval", default=2.0, show_default=True, type=SecondsRange(min=0.1), help="Seconds between refreshes."
)
@click.option("--count", type=COUNT, help="Refresh N times, then exit. Default: until Ctrl-C.", metavar="N")
def top(ctx: click.Context, limit: int, interval: float, count: int | None) -> None:
    """Show live: types, workers, the jobs that they hold and for how long, and the next jobs."""
    refreshes = 0
    with cohorts_of_context(ctx) as fleet, suppress(KeyboardInterrupt):
        while refreshes != count:
            state = status_of_all(fleet, settings_of(ctx.obj.app).max_pending)
            now_s = fleet.main.reader.now_us() / SECOND_US
            held = sorted(cohorts.held_keys(fleet, limit), key=lambda job: _since_s(job, now_s))  # called now
            running = _held_table(now_s).text(held)
            upcoming = NEXT_JOBS.text(next_jobs_of_all(fleet, None, limit)[0])
            click.clear()  # does nothing without a terminal
            warn_cohorts_down(state.down)
            click.echo(f"{status_text(state)}\n\n{running}\n\n{upcoming}")
            refreshes += 1
            if refreshes != count:
                time.sleep(interval)
