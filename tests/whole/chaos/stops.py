"""Checks preemptions for tenants below their minimum, from the notes of preempted tasks."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf

from .app import DELAY_S, MAX_STOPS, TENANTS, WORKER_TIMEOUT_S, quota_of
from .facts import Change, Job, Run
from .history import RECONNECTS_S, REPORTS_S, History
from .keys import ended
from .reasons import STOPPED, disturbed, why_again
from .remains import Remains

_FIRST = Change(-inf, 0, 0, {}, {name: quota_of(most).min for name, most in TENANTS.items()}, -inf)

#: Seconds after a fault in which the server may count claims without runs, or a worker may read late.
_UNSURE_S = WORKER_TIMEOUT_S + 2 * RECONNECTS_S


def check_stops(jobs: Sequence[Job], history: History, remains: Remains) -> tuple[int, list[str]]:
    """Return the number of preempted runs, and the violations."""
    asked = [(job, run) for job in jobs for run in job.runs if run.asked < inf]
    runs: dict[str, list[Run]] = {}
    for job in jobs:
        for run in job.runs:
            runs.setdefault(tenant_of(run), []).append(run)
    found = [f"{what}: {_described(job, run)}" for job, run in asked for what in _wrong_order(run, jobs, runs, history)]
    stopped = {job.id: job for job, _ in asked}.values()
    found += [
        f"{what}: {_described(job, job.runs[-1])}" for job in stopped for what in _wrong_end(job, history, remains)
    ]
    return len(asked), found


def tenant_of(run: Run) -> str:
    return next((key.removeprefix("tenant:") for key in run.keys if key.startswith("tenant:")), "")


def _wrong_order(run: Run, jobs: Sequence[Job], runs: dict[str, list[Run]], history: History) -> Iterator[str]:
    """Yield reasons why *run* should not have been preempted. The preemption was shortly before the task noticed it."""
    tenant = tenant_of(run)
    if not run.preemptible or not tenant:
        yield "asked to stop without preemptible=True and a tenant"
        return
    since, until = run.asked - _slack(run, history), run.asked
    held = sum(each.start <= until + REPORTS_S and ended(each, history) >= since for each in runs[tenant])
    least = min(_minima(tenant, since, until, history))
    if held - 1 < least:
        yield f"its tenant had {held} runs at most, with a minimum of {least}"
    others = [name for name in TENANTS if name != tenant]
    if not any(_may_be_in_need(name, since, until, jobs, runs.get(name, ()), history) for name in others):
        yield "no other tenant was below its minimum with a waiting job"


def _may_be_in_need(
    tenant: str, since: float, until: float, jobs: Sequence[Job], runs: Sequence[Run], history: History
):
    held = sum(run.start <= since and ended(run, history) >= until for run in runs)
    waited = (
        job.intended <= until - DELAY_S and max((run.start for run in job.runs), default=inf) >= since
        for job in jobs
        if job.tenant == tenant
    )
    return held < max(_minima(tenant, since, until, history)) and any(waited)


def _minima(tenant: str, since: float, until: float, history: History) -> list[int]:
    """Return the minima of a tenant that were possibly in force between *since* and *until*."""
    in_force = [
        change
        for change, after in pairwise([_FIRST, *history.changes, None])
        if change.began <= until and (after is None or after.noted >= since or history.amnesias)
    ]
    return [change.minima.get(tenant, 0) for change in in_force]


def _slack(run: Run, history: History) -> float:
    """Return the max seconds from the preemption of *run* until its task noted it."""
    since, until = run.asked - _UNSURE_S, run.asked
    windows = (*history.troubles, *history.amnesias, *history.is_full)
    times = (*history.turnover, *history.deaths.values())
    is_unsure = any(window.meets(since, until) for window in windows) or any(since <= at <= until for at in times)
    return _UNSURE_S if is_unsure else REPORTS_S


def _wrong_end(job: Job, history: History, remains: Remains) -> Iterator[str]:
    """Yield the violations of a preempted job, unless a fault hit it as well."""
    if disturbed(job, history) or any(window.meets(job.intended, inf) for window in history.amnesias):
        return
    stopped = [run for run in job.runs if why_again(run, history) == STOPPED]
    if stopped and stopped[-1] is job.runs[-1] and stopped[-1].outcome == "done":
        stopped.pop()  # it continued after its grace in a pool that cannot kill it, and ended normally
    stops = len(stopped)
    if stops > MAX_STOPS:
        yield f"stopped {stops} times"
    if job.failed:
        yield f"failed with {job.failed}, but was only stopped"
    if remains.deliveries.get(job.redis_id, 0):
        yield f"a stop counts as a delivery: {remains.deliveries[job.redis_id]}"
    counted = remains.preemptions.get(job.redis_id, stops)
    if counted != stops:
        yield f"{stops} stops, but {counted} counted by the server"


def _described(job: Job, run: Run) -> str:
    starts = "; ".join(
        f"run by {each.pid} of worker {each.worker} {each.start:.2f}..{each.end:.2f} {each.outcome}, fence "
        f"{each.fence}, asked {each.asked:.2f}"
        for each in job.runs
    )
    return f"{job.name} {job.redis_id} of {job.type} and tenant {tenant_of(run)}: {starts}"
