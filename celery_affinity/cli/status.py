"""``celery -A proj affinity status``, ``explain``, ``pending`` and ``top``: reports on the fleet, with their output."""

import time
from collections.abc import Collection, Sequence
from contextlib import suppress

import click

from ..admin import job_values
from ..clock import SECOND_US
from ..options.type_names import did_you_mean
from ..publishing.app_config import settings_of
from ..reports import cohorts
from ..reports.explain import Explanation
from ..reports.jobs import Job
from ..reports.json import as_json as as_json_of
from ..reports.queue_order import NextJob
from ..reports.render import duration_text, format_table, mode_text, pluralize, with_cohort_column
from ..reports.status import Status, TypeStatus, WorkerStatus
from ..reports.stock_messages import MOST_SHOWN
from ..reports.tenants import TENANTS
from ..reports.type_limits import pause_line
from ..reports.type_metrics import Trend
from ..schema.bounds import DROP_NEWEST, DROP_OLDEST, REFUSE, Bound
from ..transport.app_api import stock_lists_of
from . import explain_text
from .framework import (
    COUNT,
    SecondsRange,
    cohorts_of_context,
    command,
    show_report,
    warn_cohorts_down,
)

_SLOTS = ("free slots", "busy slots")

#: Effect on calls of a type whose bound is reached.
_BEYOND = {
    REFUSE: "further calls are refused",
    DROP_OLDEST: "then the oldest job is dropped",
    DROP_NEWEST: "further calls are dropped",
}


def status_text(status: Status) -> str:
    """Return types, workers and counts as text."""
    is_any_merged = any(type_.further_calls for type_ in status.types)
    types = with_cohort_column(
        status.types,
        ("type", "pending", *(["calls"] if is_any_merged else []), "on demand", "oldest wait", *_SLOTS, ""),
        [_type_row(type_, is_any_merged) for type_ in status.types],
        red=[type_.unserved for type_ in status.types],
    )
    workers = with_cohort_column(
        status.workers,
        ("worker", "types", "slots", "free", "last heartbeat", ""),
        [_worker_row(worker) for worker in status.workers],
    )
    paused = "".join(f"\n{pause_line(pause)}" for pause in status.pauses)
    lists = f"\n\n{_unserved_lists(status)}" if status.unserved_lists else ""
    tenants = f"\n\n{TENANTS.text(status.tenants)}" if status.tenants else ""
    requeued = f" ({status.requeued} requeued, start again after a pause)" if status.requeued else ""
    counts = f"scheduled for later: {status.scheduled}{requeued}   dead letters: {status.dead}"
    return f"{types}\n\n{workers}{tenants}{lists}\n\n{counts}{paused}"


def _unserved_lists(status: Status) -> str:
    """Return the messages of stock producers that no live worker takes over."""
    shown = status.unserved_lists[:MOST_SHOWN]
    rows = [
        (
            stock_list.queue,
            str(stock_list.messages),
            "-" if stock_list.oldest_s is None else duration_text(stock_list.oldest_s),
            stock_list.oldest_task or "-",
            "no live worker serves it",
        )
        for stock_list in shown
    ]
    more = len(status.unserved_lists) - len(shown)
    notes = [f"and {more} more lists"] if more else []
    notes += ["not all queues were looked at"] if status.more_lists else []
    notes.append(
        "These messages are in stock Celery's lists: their producers do not have this transport, so affinity= had no "
        "effect. `celery affinity check` says what to do."
    )
    lists = format_table(("stock list", "messages", "oldest", "its task", ""), rows, [True] * len(rows))
    return "\n".join([lists, *notes])


def _type_row(type_: TypeStatus, has_calls: bool) -> tuple[str, ...]:
    wait = "-" if type_.oldest_wait_s is None else duration_text(type_.oldest_wait_s)
    notes = ["paused"] if type_.paused else []
    notes += [f"{pluralize(type_.kept_back, 'waits', 'wait')} for a key"] if type_.kept_back else []
    notes += _limit(type_)
    notes += (
        [f"{pluralize(type_.kept_back_by_reserves, 'waits', 'wait')} because of a reserve"]
        if type_.kept_back_by_reserves
        else []
    )
    notes += [f"kept free: {kept.kept} for {kept.for_whom}" for kept in type_.reserves]
    notes += [_fill(type_.pending, type_.bound)] if type_.bound else []
    notes += [_trend(type_.trend, type_.unserved)] if type_.trend and (type_.trend.grows or type_.trend.shrinks) else []
    notes += ["no live worker serves it"] if type_.unserved else []
    note = "; ".join(notes)
    waiting = [type_.pending, type_.calls] if has_calls else [type_.pending]
    return type_.type, *map(str, [*waiting, type_.on_demand]), wait, str(type_.free), str(type_.busy), note


def _limit(type_: TypeStatus) -> list[str]:
    """Return the note about jobs that the type's limit blocks, as a list, or [] if there are none."""
    if type_.limit == 0:
        return ["closed: its limit is 0"]
    if not type_.kept_back_by_limit:
        return []
    waits = pluralize(type_.kept_back_by_limit, "waits", "wait")
    return [f"{waits} because of its limit: {type_.running} of {type_.limit} run"]


def _trend(trend: Trend, is_unserved: bool) -> str:
    by = abs(trend.now - trend.before)
    how = f"{'grows' if trend.grows else 'shrinks'} by {by:,} in {duration_text(trend.seconds)}"
    if is_unserved:  # the server does not count calls of a type without workers
        return how
    return f"{how}: {trend.published:,} published, {trend.ended:,} ended"


def _fill(pending: int, bound: Bound) -> str:
    full = _BEYOND[bound.full]
    return f"{pending * 100 // bound.most} % full: {bound.most:,} may wait, {full}"


def _worker_row(worker: WorkerStatus) -> tuple[str, ...]:
    notes = ["draining"] if worker.draining else ["takes no jobs"] if not worker.types else []
    notes += ["its event loop stands still"] if worker.stalled else []
    if worker.pace and worker.is_slow:
        notes.append(
            f"slow: its {worker.pace.type} jobs take {worker.pace.times:.1f} times as long as on other workers"
        )
    notes += [f"takes no {', '.join(worker.withdrawn)} jobs for the moment"] if worker.withdrawn else []
    note = "; ".join(notes)
    heartbeat = f"{duration_text(worker.last_heartbeat_s)} ago"
    return worker.name, ",".join(worker.types), str(worker.slots), str(worker.free), heartbeat, note


def running_text(jobs: Sequence[Job], now_s: float) -> str:
    """Return the jobs that workers hold as a table, the oldest first."""
    if not jobs:
        return "no worker holds a job"
    ordered = sorted(jobs, key=lambda job: job.started_s or job.claimed_s or now_s)
    return with_cohort_column(
        ordered, ("worker", "for", "type", "task", "task id", ""), [_running_row(job, now_s) for job in ordered]
    )


def _running_row(job: Job, now_s: float) -> tuple[str, ...]:
    since_s = job.started_s or job.claimed_s or now_s
    note = "" if job.state == "running" else "claimed"
    return job.worker or "", duration_text(max(0.0, now_s - since_s)), job.type or "", job.task or "", job.id, note


def upcoming_text(jobs: Sequence[NextJob]) -> str:
    """Return pending jobs as a table, the next one first."""
    return with_cohort_column(
        jobs,
        ("", "type", "priority", "mode", "score", "waited", "task", "task id", ""),
        [_next_row(number, job) for number, job in enumerate(jobs, 1)],
        red=[not job.served for job in jobs],
    )


def _next_row(number: int, job: NextJob) -> tuple[str, ...]:
    note = "no live worker serves it" if not job.served else "waits for its key" if job.kept_back else ""
    score = f"{job.score:,.1f}" if job.served else "-"
    mode, wait = mode_text(job.on_demand), duration_text(job.waited_s)
    return str(number), job.type, str(job.priority), mode, score, wait, job.task, job.task_id, note


def nothing_pending_text(types: Sequence[str], served: Collection[str]) -> str:
    """Return the text for an empty table of *types*, or of all. *served*: types with live workers."""
    if not types:
        return "nothing is pending"
    return "\n".join(f"nothing is pending of type {type_!r}{_unless_served(type_, served)}" for type_ in types)


def _unless_served(type_: str, served: Collection[str]) -> str:
    return "" if type_ in served else f", which no live worker serves{did_you_mean(type_, served)}"


_LIMIT = click.option("--limit", default=20, show_default=True, type=COUNT, help="Largest number to show.")


@command("status", json=True)
def status(ctx: click.Context, as_json: bool) -> None:
    """Show types (pending, oldest wait, slots) and workers."""
    with cohorts_of_context(ctx) as fleet:
        report = cohorts.status_of_all(fleet, settings_of(ctx.obj.app).max_pending, stock_lists_of(ctx.obj.app))
    warn_cohorts_down(report.down)
    show_report(report, status_text, json=as_json)


@command("explain", json=True)
@click.argument("task_id")
@click.option("--values", "with_values", is_flag=True, help="Show arguments, and the result or traceback, where known.")
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
        values = (
            fleet.ask(
                job.cohort or fleet.names[0], lambda scheduler: job_values.decode_arguments(scheduler.reader, job)
            )
            if with_values
            else None
        )
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


@command("pending", json=True)
@click.argument("types", metavar="[TYPE]...", nargs=-1)
@_LIMIT
def pending(ctx: click.Context, types: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List the next pending jobs, in the order in which they would be claimed now."""
    with cohorts_of_context(ctx) as fleet:
        jobs, down = cohorts.next_jobs_of_all(fleet, types or None, limit)
        served = cohorts.served_by(fleet) if types and not jobs else set()
    warn_cohorts_down(down)

    def as_text(jobs: list[NextJob]) -> str:
        return upcoming_text(jobs) if jobs else nothing_pending_text(types, served)

    show_report(jobs, as_text, json=as_json)


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
            state = cohorts.status_of_all(fleet, settings_of(ctx.obj.app).max_pending)
            now_s = fleet.main.reader.now_us() / SECOND_US
            running = running_text(cohorts.held_keys(fleet, limit), now_s)
            upcoming = upcoming_text(cohorts.next_jobs_of_all(fleet, None, limit)[0])
            click.clear()  # does nothing without a terminal
            warn_cohorts_down(state.down)
            click.echo(f"{status_text(state)}\n\n{running}\n\n{upcoming}")
            refreshes += 1
            if refreshes != count:
                time.sleep(interval)
