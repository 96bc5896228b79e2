"""Checks the number of simultaneous runs of keys, limited types and reserved classes, and the starts of rates.

Fencing tokens order the claims: a job holds its key from its claim to its end. Faults explain additional runs.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf

from celery_affinity import Exclusive
from celery_affinity.settings.reserves import Reserve

from .app import GRACE_S, MANY, OF_MANY, RULES, TENANTS, WORKER_TIMEOUT_S
from .facts import Change, Job, Run
from .history import History
from .reasons import FORCED_S, ORPHAN_S, why_again
from .reserves import of_name, serves

_LIMITS = {rule.key: rule.limit for rule in RULES if isinstance(rule, Exclusive)} | {OF_MANY: 1}
_LIMITS |= {f"tenant:{name}": most for name, most in TENANTS.items() if most is not None}
_RATES = {f"rate:{rule.key}": int(rule.rate.removesuffix("/s")) for rule in RULES if not isinstance(rule, Exclusive)}

#: Max seconds until the server counts all slots of a starting worker and none of an ended one, and from a claim to the
#: start of its job.
_CHANGES_S = WORKER_TIMEOUT_S + 10


def check_keys(jobs: Iterable[Job], history: History, overlaps: Counter[str]) -> tuple[int, list[str]]:
    """Return the number of runs with a key, and the violations; count explained cases per fault in *overlaps*."""
    runs: dict[str, list[Run]] = defaultdict(list)
    published: dict[str, float] = {}
    for job in jobs:
        for run in job.runs:
            for key in run.keys:
                runs[key].append(run)
                published[key] = min(published.get(key, inf), job.intended)
    found = []
    for key, of_key in runs.items():
        if key in _RATES:
            found += _too_many_starts(key, of_key, published[key], history)
        else:
            found += _too_many_at_once(key, of_key, history, overlaps)
    return sum(map(len, runs.values())), found


def check_types(jobs: Sequence[Job], history: History, overlaps: Counter[str]) -> tuple[int, list[str]]:
    """Return the number of runs under a type limit or a reserve, and the violations, like `check_keys`."""
    runs: dict[str, list[Run]] = defaultdict(list)
    limited = {pattern for change in history.changes for pattern in change.limits}
    reserves = {name: of_name(name) for name in limited if name.startswith("reserve:")}
    for job in jobs:
        if f"type:{job.type}" in limited:
            runs[f"type:{job.type}"] += job.runs
    found = [each for type_, of_type in runs.items() for each in _too_many_at_once(type_, of_type, history, overlaps)]
    for name, reserve in reserves.items():
        all_runs = (run for job in jobs for run in job.runs)
        on_its_slots = [run for run in all_runs if serves(history.members.get(run.worker), reserve.pattern)]
        runs[name] = [run for job in jobs if job.type == reserve.pattern for run in job.runs if _covers(reserve, run)]
        found += _too_many_at_once(name, on_its_slots, history, overlaps, {run.id for run in runs[name]})
    return sum(limit_of(type_, run, history) < inf for type_, of_type in runs.items() for run in of_type), found


def _covers(reserve: Reserve, run: Run) -> bool:
    return reserve.covers(run.mode == "on_demand", run.priority)


def limit_of(name: str, run: Run, history: History) -> float:
    """Return the highest possible limit of *name*, a key or "type:" and a type, at the claim of *run*."""
    if name.startswith("reserve:") and not _is_whole(run, history):
        return inf
    first = Change(-inf, 0, 0, {})
    if any(window.meets(change.began, run.start) for window in history.amnesias for change in history.changes[:1]):
        met = [first, *history.changes]  # the server may have lost any of them
    else:
        met = [
            change
            for change, after in pairwise([first, *history.changes, None])
            if change.began <= run.start
            and (change is first or change.before < run.fence)
            and (after is None or run.fence <= after.after or run.start < after.began)
        ]
    pattern = OF_MANY if name.startswith(MANY) else name
    return max(change.limits.get(pattern, _LIMITS.get(pattern, inf)) for change in met)


def _is_whole(run: Run, history: History) -> bool:
    """Return True if the fleet had its usual number of slots at the claim of *run*."""
    return not any(run.start - _CHANGES_S < at < run.start for at in history.turnover)


def _too_many_at_once(
    name: str, runs: list[Run], history: History, overlaps: Counter[str], limited: Collection[str] | None = None
) -> Iterator[str]:
    """Yield the claims that exceed the limit together with older runs. Older runs with a noted fault do not count.

    *limited*: ids of the *runs* that *name* limits, or None for all of them.
    """
    runs.sort(key=lambda run: run.fence)
    ends = [ended(run, history) for run in runs]
    for nth, run in enumerate(runs):
        limit = limit_of(name, run, history) if limited is None or run.id in limited else inf
        if limit == inf:
            continue
        older = [each for each, end in zip(runs[:nth], ends, strict=False) if end > run.start]
        if len(older) < limit or (why_again(run, history) or "").startswith("forgotten"):
            continue
        why = {each.id: why_again(each, history) or "" for each in older}
        if sum(not each for each in why.values()) >= limit:
            yield f"{len(older) + 1} at once of {name}, limit {limit}: {'; '.join(map(_described, [*older, run]))}"
        else:
            overlaps[next(each for each in why.values() if each)] += 1


def _too_many_starts(key: str, runs: list[Run], since: float, history: History) -> Iterable[str]:
    """Yield a violation if the starts exceed a rate since the publish of its first job."""
    runs.sort(key=lambda run: run.start)
    if any(window.meets(since, runs[-1].start) for window in history.amnesias):
        return  # the server has lost earlier starts
    for number, run in enumerate(runs):
        if number + 1 > _RATES[key] * (1 + run.start - since):
            yield f"{number + 1} starts of key {key} within {run.start - since:.2f} s"
            return


def ended(run: Run, history: History) -> float:
    """Return the end of a run, or of its process."""
    own, workers = history.deaths.get(run.pid, inf), history.deaths.get(run.worker, inf)
    by_force = run.asked + GRACE_S + FORCED_S if run.end == inf else inf
    return min(run.end, own, max(run.start, workers + ORPHAN_S), by_force)


def _described(run: Run) -> str:
    return f"{run.id} of worker {run.worker}, fence {run.fence}, {run.start:.2f}..{run.end:.2f} {run.outcome}"
