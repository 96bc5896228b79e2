"""The output of ``celery affinity status`` for people."""

from ..observe.status import Status, WorkerStatus
from ..observe.stock_messages import MOST_SHOWN
from ..observe.trend import Trend
from ..observe.type_status import TypeStatus
from ..rules.bounds import DROP_NEWEST, DROP_OLDEST, REFUSE, Bound
from . import text_of_tenants
from .pauses import sentence
from .words import by_cohort, duration, many, table

_SLOTS = ("free slots", "busy slots")

#: What happens to calls of a type whose bound is reached.
_BEYOND = {
    REFUSE: "further calls are refused",
    DROP_OLDEST: "then the oldest job is dropped",
    DROP_NEWEST: "further calls are dropped",
}


def status(found: Status) -> str:
    """Return types, workers and counts as text."""
    is_any_merged = any(each.further_calls for each in found.types)
    types = by_cohort(
        found.types,
        ("type", "pending", *(["calls"] if is_any_merged else []), "on demand", "oldest wait", *_SLOTS, ""),
        [_type_row(each, is_any_merged) for each in found.types],
        red=[each.unserved for each in found.types],
    )
    workers = by_cohort(
        found.workers,
        ("worker", "types", "slots", "free", "last heartbeat", ""),
        [_worker_row(each) for each in found.workers],
    )
    paused = "".join(f"\n{sentence(each)}" for each in found.pauses)
    lists = f"\n\n{_unserved_lists(found)}" if found.unserved_lists else ""
    tenants = f"\n\n{text_of_tenants.at_a_glance(found.tenants)}" if found.tenants else ""
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
            "-" if each.oldest_s is None else duration(each.oldest_s),
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
    lists = table(("stock list", "messages", "oldest", "its task", ""), rows, [True] * len(rows))
    return "\n".join([lists, *notes])


def _type_row(each: TypeStatus, has_calls: bool) -> tuple[str, ...]:
    wait = "-" if each.oldest_wait_s is None else duration(each.oldest_wait_s)
    notes = ["paused"] if each.paused else []
    notes += [f"{many(each.kept_back, 'waits', 'wait')} for a key"] if each.kept_back else []
    notes += _limit(each)
    notes += (
        [f"{many(each.kept_back_by_reserves, 'waits', 'wait')} because of a reserve"]
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
        f"{many(each.kept_back_by_limit, 'waits', 'wait')} because of its limit: {each.running} of {each.limit} run"
    ]


def _trend(each: Trend, is_unserved: bool) -> str:
    by = abs(each.now - each.before)
    how = f"{'grows' if each.grows else 'shrinks'} by {by:,} in {duration(each.seconds)}"
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
    heartbeat = f"{duration(each.last_heartbeat_s)} ago"
    return each.name, ",".join(each.types), str(each.slots), str(each.free), heartbeat, note
