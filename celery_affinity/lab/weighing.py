"""Weights of jobs, and the mean weighted wait of a schedule: what `optimum` compares.

The wait of a run is the time from which its job could be claimed until the claim, within the trace: a job that was
pending as the trace began has waited since time 0. No schedule could have claimed it before.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from .scenario import Arrival

#: Points that a mode is worth, in steps of priority: as in the score of a claim with its coefficients by default.
_ON_DEMAND_STEPS = 4

Weight = Callable[[Arrival], float]


def equally(_: Arrival) -> float:
    """Return 1: a second that a job waits counts the same for all jobs."""
    return 1.0


def by_priority(arrival: Arrival) -> float:
    """Return priority + 1, and 4 more on demand: 1 to 15."""
    return arrival.priority + 1.0 + (_ON_DEMAND_STEPS if arrival.on_demand else 0)


#: Name of a way to weigh, as an option has it -> the way.
WEIGHTS: Mapping[str, Weight] = {"equal": equally, "priority": by_priority}


def since_us(arrival: Arrival) -> int:
    """Return the time from which the wait of *arrival* counts."""
    return max(0, arrival.since_us)


def mean_wait_s(
    arrivals: Iterable[Arrival], starts_us: Mapping[int, int], weight: Weight, only: Collection[int] | None = None
) -> float:
    """Return the mean weighted wait, s, of the jobs with a start; 0 without jobs.

    *starts_us*: number of a job -> when it was claimed. *only*: numbers of the jobs that count.
    """
    waited = weights = 0.0
    for each in arrivals:
        if each.number in starts_us and (only is None or each.number in only):
            waited += weight(each) * max(0, starts_us[each.number] - since_us(each))
            weights += weight(each)
    return waited / weights / 1e6 if weights else 0.0
