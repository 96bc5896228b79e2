"""Report the state of the fleet over all its cohorts, its types, its workers, and their reserves."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import click

from ..errors import SettingError
from ..scheduler.cohorts import CohortAnswers, CohortRow, Cohorts
from ..schema.bounds import DROP_NEWEST, DROP_OLDEST, REFUSE, Bound
from ..schema.keys import StockLists
from ..settings.cohorts import DEFAULT
from .blockers import ReservedSlots
from .render import Table, duration_or_dash, duration_text, format_table, pluralize, printable_cell
from .report import Answer, Source, report, rows_of_all
from .status import Batches, Report, Status, TypeStatus, WorkerStatus
from .stock_messages import MAX_SHOWN, StockMessages
from .tenants import TENANTS
from .type_limits import pause_line
from .type_metrics import Trend

R = TypeVar("R", bound=CohortRow)
S = TypeVar("S", bound=Status)
T = TypeVar("T")

#: Effect on calls of a type whose bound is reached.
_BEYOND = {
    REFUSE: "further calls are refused",
    DROP_OLDEST: "then the oldest job is dropped",
    DROP_NEWEST: "further calls are dropped",
}


#: Level of a headline -> its colour.
_COLOURS = {"good": "green", "warning": "yellow", "bad": "red"}

#: Kind of a blocking rule -> its text in the note of a type.
_WAITS = {"key": "a key", "quota": "their tenant's quota", "key or quota": "a key or their tenant's quota"}


def _unserved_lists(status: Status) -> str:
    """Return the messages of stock producers that no live worker takes over."""
    shown = status.unserved_lists[:MAX_SHOWN]
    rows = [
        (
            stock_list.queue,
            str(stock_list.messages),
            duration_or_dash(stock_list.oldest_s),
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


def _type_note(type_: TypeStatus) -> str:
    notes = ["paused"] if type_.paused else []
    if type_.kept_back:
        notes.append(f"{pluralize(type_.kept_back, 'waits', 'wait')} for {_WAITS[type_.waits_for or 'key']}")
    notes += _limit(type_)
    reserved = type_.kept_back_by_reserves
    notes += [f"{pluralize(reserved, 'waits', 'wait')} because of a reserve"] if reserved else []
    notes += [f"kept free: {kept.kept} for {kept.for_whom}" for kept in type_.reserves]
    if bound := type_.bound:
        filled = type_.pending * 100 // bound.most
        notes.append(f"{filled} % full: {bound.most:,} may wait, {_BEYOND[bound.full]}")
    notes += [_trend(type_.trend, type_.unserved)] if type_.trend and (type_.trend.grows or type_.trend.shrinks) else []
    notes += ["no live worker serves it"] if type_.unserved else []
    return "; ".join(notes)


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


def _worker_note(worker: WorkerStatus) -> str:
    notes = ["draining"] if worker.draining else ["takes no jobs"] if not worker.types else []
    notes += ["its event loop is blocked"] if worker.stalled else []
    if worker.is_slow and (pace := worker.pace):
        notes.append(f"slow: its {pace.type} jobs take {pace.times:.1f} times as long as on other workers")
    notes += [f"takes no {', '.join(worker.withdrawn)} jobs for the moment"] if worker.withdrawn else []
    return "; ".join(notes)


_TYPES = Table[TypeStatus](
    {
        "type": "type",
        "pending": "pending",
        "calls": "calls",
        "on demand": "on_demand",
        "oldest wait": lambda row: duration_or_dash(row.oldest_wait_s),
        "free slots": "free",
        "busy slots": "busy",
        "": _type_note,
    },
    is_red=lambda row: row.unserved,
    optional={"calls": lambda row: bool(row.further_calls)},
)

_WORKERS = Table[WorkerStatus](
    {
        "worker": "name",
        "types": lambda worker: ",".join(worker.types),
        "slots": "slots",
        "free": "free",
        "last heartbeat": lambda worker: f"{duration_text(worker.last_heartbeat_s)} ago",
        "": _worker_note,
    }
)


def status_text(status: Status) -> str:
    """Return the headline, types, workers and counts as text."""
    paused = "".join(f"\n{pause_line(pause)}" for pause in status.pauses)
    lists = f"\n\n{_unserved_lists(status)}" if status.unserved_lists else ""
    tenants = f"\n\n{TENANTS.text(status.tenants)}" if status.tenants else ""
    requeued = f" ({status.requeued} requeued, start again after a pause)" if status.requeued else ""
    counts = f"scheduled for later: {status.scheduled}{requeued}   dead letters: {status.dead}"
    types, workers = _TYPES.text(status.types), _WORKERS.text(status.workers)
    headline = click.style(printable_cell(status.headline.text), fg=_COLOURS[status.headline.level])
    return f"{headline}\n\n{types}\n\n{workers}{tenants}{lists}\n\n{counts}{paused}"


@report(
    "status",
    "/api/status",
    "Types, workers, pauses and counts, as `celery affinity status --json` prints them",
    text=status_text,
)
def status(source: Source) -> Answer[Status]:
    """Show types (pending, oldest wait, slots) and workers."""
    fleet_status = status_of_all(source.fleet, source.settings.max_pending, source.stock_lists())
    return Answer(fleet_status, fleet_status.down or {})


def _part(source: Source, part_of: Callable[[Status], T]) -> Answer[T]:
    fleet_status = status_of_all(source.fleet, source.settings.max_pending)
    return Answer(part_of(fleet_status), fleet_status.down or {})


@report("/api/types", "/api/types", "Types with jobs or workers")
def types(source: Source) -> Answer[list[TypeStatus]]:
    """Report the types of the fleet's status."""
    return _part(source, lambda status: status.types)


@report("/api/workers", "/api/workers", "Live workers")
def workers(source: Source) -> Answer[list[WorkerStatus]]:
    """Report the workers of the fleet's status."""
    return _part(source, lambda status: status.workers)


@report("/api/reserves", "/api/reserves", "Reserved slots, by type")
def reserves(source: Source) -> Answer[list[ReservedSlots]]:
    """Report the reserves of the types in the fleet's status."""
    return _part(source, lambda status: [reserve for row in status.types for reserve in row.reserves])


def status_of_all(
    fleet: Cohorts, bounds: Mapping[str, int | Bound] | None = None, lists: StockLists | None = None
) -> Status:
    """Return the merged state of all cohorts. *lists*: the lists to which the app's stock producers publish."""
    status = merge_status(fleet.each(lambda scheduler: Report(scheduler.reader, bounds).status()))
    return status if lists is None else with_unserved_lists(fleet, status, lists)


def with_unserved_lists(fleet: Cohorts, status: Status, lists: StockLists) -> Status:
    """Return the status with the messages in stock Celery's lists that no live worker serves.

    Only the server and the types of the cohort `default` are searched.
    """
    if fleet.main.keys.cohort != DEFAULT:
        return status
    messages = stock_messages(fleet, lists, [row.type for row in status.types])
    unserved = messages.unserved({type_ for worker in status.workers for type_ in worker.types})
    of_default = [row for row in unserved if _is_of_default(fleet, row.queue)]
    return replace(status, unserved_lists=of_default, more_lists=not messages.are_all)


def _is_of_default(fleet: Cohorts, queue: str) -> bool:
    try:
        return fleet.cohort_of(queue) == DEFAULT
    except SettingError:  # several cohorts match, so calls fail with this error
        return False


def stock_messages(fleet: Cohorts, lists: StockLists, types: Iterable[str]) -> StockMessages:
    return StockMessages(fleet.main.reader, lists, fleet.main.keys.of_kombu, types)


def merge_status(replies: CohortAnswers[S]) -> S | Status:
    """Return the rows of all cohorts and the sums of their counts."""
    statuses = list(replies.answers.values())
    if not replies.is_split:
        return statuses[0]

    def all_of(pick: Callable[[S], list[R]]) -> list[R]:
        rows = {name: pick(status) for name, status in replies.answers.items()}
        return rows_of_all(CohortAnswers(rows, replies.down))

    stale_s = [status.stale_s for status in statuses if status.stale_s is not None]
    return Status(
        types=sorted(all_of(lambda status: status.types), key=lambda row: row.type),
        workers=sorted(all_of(lambda status: status.workers), key=lambda worker: worker.name),
        scheduled=sum(status.scheduled for status in statuses),
        dead=sum(status.dead for status in statuses),
        counters=_sums(status.counters for status in statuses),
        waiting_keys=sum(status.waiting_keys for status in statuses),
        pauses=sorted(all_of(lambda status: status.pauses), key=lambda pause: pause.since),
        stale_s=max(stale_s, default=None),
        batches=Batches(
            _sums(status.batches.runs for status in statuses), sum(status.batches.calls for status in statuses)
        ),
        refused=_sums(status.refused for status in statuses),
        dropped=_sums(status.dropped for status in statuses),
        tenants=all_of(lambda status: status.tenants),
        down=dict(replies.down) or None,
        requeued=sum(status.requeued for status in statuses),
        dead_last_hour=sum(status.dead_last_hour for status in statuses),
        wait_p95_s=max((status.wait_p95_s for status in statuses if status.wait_p95_s is not None), default=None),
    )


def whole_workers(workers: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    """Return the workers, with one row for each worker that is in several cohorts. *id*: all its ids.

    A worker has the same name in each of its cohorts.
    """
    whole: dict[str, WorkerStatus] = {}
    for worker in workers:
        if worker.cohort is None or worker.name not in whole:
            whole[worker.id if worker.cohort is None else worker.name] = worker
            continue
        other = whole[worker.name]
        whole[worker.name] = replace(
            other,
            id=f"{other.id} {worker.id}",
            types=sorted({*other.types, *worker.types}),
            slots=other.slots + worker.slots,
            free=other.free + worker.free,
            held=other.held + worker.held,
            draining=other.draining or worker.draining,
            withdrawn=sorted({*other.withdrawn, *worker.withdrawn}),
            cohort=None,
        )
    return list(whole.values())


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for counter in counts:
        total.update(counter)
    return dict(total)
