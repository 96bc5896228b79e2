"""The output of ``celery affinity status`` for people.

Tables of jobs for people: those that workers hold, and those that are claimed next.

``celery -A proj affinity status``, ``explain``, ``pending`` and ``top``: look at the fleet.
"""

import time
from collections.abc import Collection, Sequence
from contextlib import suppress

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..admin import job_values
from ..clock import SECOND_US
from ..options.type_names import did_you_mean
from ..publishing.app_config import settings_of
from ..reports import cohorts
from ..reports.explain import Explanation
from ..reports.jobs import Job
from ..reports.json import as_json as as_json_of
from ..reports.queue_order import NextJob
from ..reports.status import Status, TypeStatus, WorkerStatus
from ..reports.stock_messages import MOST_SHOWN
from ..reports.type_metrics import Trend
from ..schema.bounds import DROP_NEWEST, DROP_OLDEST, REFUSE, Bound
from ..transport.app_api import stock_lists_of
from . import explain_text, keys
from .framework import AS_JSON, COUNT, SecondsRange, cohorts_of_context, show_report, warn_cohorts_down
from .render import duration_text, format_table, mode_text, pluralize, with_cohort_column
from .settings import pause_sentence

_SLOTS = ("free slots", "busy slots")

#: What happens to calls of a type whose bound is reached.
_BEYOND = {
    REFUSE: "further calls are refused",
    DROP_OLDEST: "then the oldest job is dropped",
    DROP_NEWEST: "further calls are dropped",
}


def status_text(found: Status) -> str:
    """Return types, workers and counts as text."""
    is_any_merged = any(each.further_calls for each in found.types)
    types = with_cohort_column(
        found.types,
        ("type", "pending", *(["calls"] if is_any_merged else []), "on demand", "oldest wait", *_SLOTS, ""),
        [_type_row(each, is_any_merged) for each in found.types],
        red=[each.unserved for each in found.types],
    )
    workers = with_cohort_column(
        found.workers,
        ("worker", "types", "slots", "free", "last heartbeat", ""),
        [_worker_row(each) for each in found.workers],
    )
    paused = "".join(f"\n{pause_sentence(each)}" for each in found.pauses)
    lists = f"\n\n{_unserved_lists(found)}" if found.unserved_lists else ""
    tenants = f"\n\n{keys.tenants_summary(found.tenants)}" if found.tenants else ""
    requeued = f" ({found.requeued} requeued, start again after a pause)" if found.requeued else ""
    counts = f"scheduled for later: {found.scheduled}{requeued}   dead letters: {found.dead}"
    return f"{types}\n\n{workers}{tenants}{lists}\n\n{counts}{paused}"


def _unserved_lists(found: Status) -> str:
    """Return the messages of producers without this transport that no live worker takes over."""
    shown = found.unserved_lists[:MOST_SHOWN]
    rows = [
        (
            each.queue,
            str(each.messages),
            "-" if each.oldest_s is None else duration_text(each.oldest_s),
            each.oldest_task or "-",
            "no live worker serves it",
        )
        for each in shown
    ]
    more = len(found.unserved_lists) - len(shown)
    notes = [f"and {more} more lists"] if more else []
    notes += ["not all queues were looked at"] if found.more_lists else []
    notes.append(
        "These messages are in stock Celery's lists: their producers do not have this transport, so affinity= had no "
        "effect. `celery affinity check` says what to do."
    )
    lists = format_table(("stock list", "messages", "oldest", "its task", ""), rows, [True] * len(rows))
    return "\n".join([lists, *notes])


def _type_row(each: TypeStatus, has_calls: bool) -> tuple[str, ...]:
    wait = "-" if each.oldest_wait_s is None else duration_text(each.oldest_wait_s)
    notes = ["paused"] if each.paused else []
    notes += [f"{pluralize(each.kept_back, 'waits', 'wait')} for a key"] if each.kept_back else []
    notes += _limit(each)
    notes += (
        [f"{pluralize(each.kept_back_by_reserves, 'waits', 'wait')} because of a reserve"]
        if each.kept_back_by_reserves
        else []
    )
    notes += [f"kept free: {kept.kept} for {kept.for_whom}" for kept in each.reserves]
    notes += [_fill(each.pending, each.bound)] if each.bound else []
    notes += [_trend(each.trend, each.unserved)] if each.trend and (each.trend.grows or each.trend.shrinks) else []
    notes += ["no live worker serves it"] if each.unserved else []
    note = "; ".join(notes)
    waiting = [each.pending, each.calls] if has_calls else [each.pending]
    return each.type, *map(str, [*waiting, each.on_demand]), wait, str(each.free), str(each.busy), note


def _limit(each: TypeStatus) -> list[str]:
    """Return what the limit of the type keeps back."""
    if each.limit == 0:
        return ["closed: its limit is 0"]
    if not each.kept_back_by_limit:
        return []
    return [
        f"{pluralize(each.kept_back_by_limit, 'waits', 'wait')} because of its limit: {each.running} of {each.limit} run"
    ]


def _trend(each: Trend, is_unserved: bool) -> str:
    by = abs(each.now - each.before)
    how = f"{'grows' if each.grows else 'shrinks'} by {by:,} in {duration_text(each.seconds)}"
    if is_unserved:  # of a type without workers the server counts no calls
        return how
    return f"{how}: {each.published:,} published, {each.ended:,} ended"


def _fill(pending: int, bound: Bound) -> str:
    full = _BEYOND[bound.full]
    return f"{pending * 100 // bound.most} % full: {bound.most:,} may wait, {full}"


def _worker_row(each: WorkerStatus) -> tuple[str, ...]:
    notes = ["draining"] if each.draining else ["takes no jobs"] if not each.types else []
    notes += ["its event loop stands still"] if each.stalled else []
    if each.pace and each.is_slow:
        notes.append(f"slow: its {each.pace.type} jobs take {each.pace.times:.1f} times as long as on other workers")
    notes += [f"takes no {', '.join(each.withdrawn)} jobs for the moment"] if each.withdrawn else []
    note = "; ".join(notes)
    heartbeat = f"{duration_text(each.last_heartbeat_s)} ago"
    return each.name, ",".join(each.types), str(each.slots), str(each.free), heartbeat, note


def running_text(jobs: Sequence[Job], now_s: float) -> str:
    """Return the jobs that workers hold as a table, those that began first at the top."""
    if not jobs:
        return "no worker holds a job"
    ordered = sorted(jobs, key=lambda each: each.started_s or each.claimed_s or now_s)
    return with_cohort_column(
        ordered, ("worker", "for", "type", "task", "task id", ""), [_running_row(each, now_s) for each in ordered]
    )


def _running_row(each: Job, now_s: float) -> tuple[str, ...]:
    since_s = each.started_s or each.claimed_s or now_s
    note = "" if each.state == "running" else "claimed"
    return each.worker or "", duration_text(max(0.0, now_s - since_s)), each.type or "", each.task or "", each.id, note


def upcoming_text(found: Sequence[NextJob]) -> str:
    """Return pending jobs as a table, the next one first."""
    return with_cohort_column(
        found,
        ("", "type", "priority", "mode", "score", "waited", "task", "task id", ""),
        [_next_row(number, each) for number, each in enumerate(found, 1)],
        red=[not each.served for each in found],
    )


def _next_row(number: int, each: NextJob) -> tuple[str, ...]:
    note = "no live worker serves it" if not each.served else "waits for its key" if each.kept_back else ""
    score = f"{each.score:,.1f}" if each.served else "-"
    how, wait = mode_text(each.on_demand), duration_text(each.waited_s)
    return str(number), each.type, str(each.priority), how, score, wait, each.task, each.task_id, note


def nothing_pending_text(types: Sequence[str], served: Collection[str]) -> str:
    """Return the text for an empty table, for each of *types* or for all. *served*: types with live workers."""
    if not types:
        return "nothing is pending"
    return "\n".join(f"nothing is pending of type {type_!r}{_unless_served(type_, served)}" for type_ in types)


def _unless_served(type_: str, served: Collection[str]) -> str:
    return "" if type_ in served else f", which no live worker serves{did_you_mean(type_, served)}"


_LIMIT = click.option("--limit", default=20, show_default=True, type=COUNT, help="Largest number to show.")


@click.command(cls=CeleryCommand)
@AS_JSON
@click.pass_context
@handle_preload_options
def status(ctx: click.Context, as_json: bool) -> None:
    """Show types (pending, oldest wait, slots) and workers."""
    with cohorts_of_context(ctx) as fleet:
        found = cohorts.status_of_all(fleet, settings_of(ctx.obj.app).max_pending, stock_lists_of(ctx.obj.app))
    warn_cohorts_down(found.down)
    show_report(found, status_text, json=as_json)


@click.command(cls=CeleryCommand)
@click.argument("task_id")
@click.option("--values", "with_values", is_flag=True, help="Show arguments, and the result or traceback, where known.")
@AS_JSON
@click.pass_context
@handle_preload_options
def explain(ctx: click.Context, task_id: str, with_values: bool, as_json: bool) -> None:
    """Show where a task is and, if it waits, why and for how long.

    Exits with 1 if the task is unknown.
    """
    wanted = task_id.strip()  # ids copied from a log have blanks around them
    hidden = job_values.hidden_reason(ctx.obj.app) if with_values else None
    if hidden:
        raise click.UsageError(f"--values: {hidden}")
    with cohorts_of_context(ctx) as fleet:
        found = cohorts.explain_in_all(fleet, wanted, stock_lists_of(ctx.obj.app))
        known = (
            fleet.ask(found.cohort or fleet.names[0], lambda one: job_values.decode_arguments(one.reader, found))
            if with_values
            else None
        )
    if known is None:
        show_report(found, explain_text.explanation_text, json=as_json)
    else:
        _show_with(job_values.with_result(ctx.obj.app, wanted, known), found, as_json)
    if found.state == "unknown":
        ctx.exit(1)


def _show_with(its: job_values.JobValues, found: Explanation, as_json: bool) -> None:
    shown = as_json_of(found)
    assert isinstance(shown, dict)
    words = f"{explain_text.explanation_text(found)}\n\n{explain_text.values_text(its)}"
    show_report({**shown, "values": its}, lambda _: words, json=as_json)


@click.command(cls=CeleryCommand)
@click.argument("types", metavar="[TYPE]...", nargs=-1)
@_LIMIT
@AS_JSON
@click.pass_context
@handle_preload_options
def pending(ctx: click.Context, types: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List the next pending jobs, in the order in which they would be claimed now."""
    with cohorts_of_context(ctx) as fleet:
        found, down = cohorts.next_jobs_of_all(fleet, types or None, limit)
        served = cohorts.served_by(fleet) if types and not found else set()
    warn_cohorts_down(down)

    def as_text(found: list[NextJob]) -> str:
        return upcoming_text(found) if found else nothing_pending_text(types, served)

    show_report(found, as_text, json=as_json)


@click.command(cls=CeleryCommand)
@_LIMIT
@click.option(
    "--interval", default=2.0, show_default=True, type=SecondsRange(min=0.1), help="Seconds between refreshes."
)
@click.option("--count", type=COUNT, help="Refresh N times, then exit. Default: until Ctrl-C.", metavar="N")
@click.pass_context
@handle_preload_options
def top(ctx: click.Context, limit: int, interval: float, count: int | None) -> None:
    """Show live: types, workers, the jobs that they hold and for how long, and the next jobs."""
    looks = 0
    with cohorts_of_context(ctx) as fleet, suppress(KeyboardInterrupt):
        while looks != count:
            state = cohorts.status_of_all(fleet, settings_of(ctx.obj.app).max_pending)
            now_s = fleet.main.reader.now_us() / SECOND_US
            running = running_text(cohorts.held_keys(fleet, limit), now_s)
            upcoming = upcoming_text(cohorts.next_jobs_of_all(fleet, None, limit)[0])
            click.clear()  # does nothing without a terminal
            warn_cohorts_down(state.down)
            click.echo(f"{status_text(state)}\n\n{running}\n\n{upcoming}")
            looks += 1
            if looks != count:
                time.sleep(interval)
