"""Checks recurring calls: every call published by the server ran, and none came within the interval of the last."""

from math import inf

from .app import STALE_S
from .facts import Run
from .history import History
from .remains import Remains

#: A call may seem this many seconds early, since the ledger gets an end before the server.
EARLY_S = 0.05


def check_recurring(history: History, remains: Remains) -> tuple[int, list[str]]:
    """Check the calls since the last check. Return the number of calls that ran, and the violations."""
    if remains.fired is None:
        return 0, []
    runs = [run for of_one in history.recurring.values() for run in of_one]
    ran = {call for run in runs for call in run.calls}
    made, history.fired_before = remains.fired - history.fired_before, remains.fired
    forgot = any(window.meets(history.judged_at, inf) for window in history.amnesias)
    history.judged_at = remains.at
    found = []
    if made != len(ran) and not forgot:
        found.append(f"the server made {made} calls that recur, and {len(ran)} ran")
    if not ran and not forgot:
        found.append("no call that recurs was made")
    found += _too_early(history.recurring["end"], history)
    history.recurring.clear()
    return len(ran), found


def _too_early(runs: list[Run], history: History) -> list[str]:
    """Return violations for runs that began too soon after the first end of another call."""
    found, ends = [], dict[str, float]()
    for run in sorted(runs, key=lambda run: run.start):
        others = [end for call, end in ends.items() if call not in run.calls and end < run.start]
        last = max(others, default=-inf)
        forgotten = any(window.meets(last, run.start) for window in history.amnesias)
        if run.start - last < STALE_S - EARLY_S and not forgotten and not _ran_before(run, ends):
            found.append(f"a call that recurs ran {run.start - last:.2f} s after the last had ended: {run.calls}")
        for call in run.calls:
            if run.outcome == "done":
                ends.setdefault(call, run.end)
    return found


def _ran_before(run: Run, ends: dict[str, float]) -> bool:
    """Return True if a call of the run has ended before: `checker` checks repeated deliveries."""
    return any(call in ends for call in run.calls)
