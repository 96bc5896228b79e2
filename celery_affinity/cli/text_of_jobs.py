"""Tables of jobs for people: those that workers hold, and those that are claimed next."""

from collections.abc import Collection, Sequence

from ..observe.claim_order import Next
from ..observe.jobs import Job
from ..rules.type_name import did_you_mean
from .words import by_cohort, duration, mode


def running(jobs: Sequence[Job], now_s: float) -> str:
    """Return the jobs that workers hold as a table, those that began first at the top."""
    if not jobs:
        return "no worker holds a job"
    ordered = sorted(jobs, key=lambda each: each.started_s or each.claimed_s or now_s)
    return by_cohort(
        ordered, ("worker", "for", "type", "task", "task id", ""), [_running_row(each, now_s) for each in ordered]
    )


def _running_row(each: Job, now_s: float) -> tuple[str, ...]:
    since_s = each.started_s or each.claimed_s or now_s
    note = "" if each.state == "running" else "claimed"
    return each.worker or "", duration(max(0.0, now_s - since_s)), each.type or "", each.task or "", each.id, note


def upcoming(found: Sequence[Next]) -> str:
    """Return pending jobs as a table, the next one first."""
    return by_cohort(
        found,
        ("", "type", "priority", "mode", "score", "waited", "task", "task id", ""),
        [_next_row(number, each) for number, each in enumerate(found, 1)],
        red=[not each.served for each in found],
    )


def _next_row(number: int, each: Next) -> tuple[str, ...]:
    note = "no live worker serves it" if not each.served else "waits for its key" if each.kept_back else ""
    score = f"{each.score:,.1f}" if each.served else "-"
    how, wait = mode(each.on_demand), duration(each.waited_s)
    return str(number), each.type, str(each.priority), how, score, wait, each.task, each.task_id, note


def nothing_pending(types: Sequence[str], served: Collection[str]) -> str:
    """Return the text for an empty table, for each of *types* or for all. *served*: types with live workers."""
    if not types:
        return "nothing is pending"
    return "\n".join(f"nothing is pending of type {type_!r}{_unless_served(type_, served)}" for type_ in types)


def _unless_served(type_: str, served: Collection[str]) -> str:
    return "" if type_ in served else f", which no live worker serves{did_you_mean(type_, served)}"
