"""The overtaking bound: the later jobs that can pass a job, and so the longest wait.

A job can be passed only by jobs enqueued less than `seconds` after it, whatever the load. ``docs/explanation/
scheduling.md`` has the bound and its conditions, ``docs/internals/overtaking.md`` the proof.
"""

from collections.abc import Mapping

from ..clock import SECOND_US
from .protocol import MAX_PRIORITY
from .score import Weights
from .settings import SHARE


def bonus_in(settings: Mapping[str, str]) -> float:
    """Return the points that a job gains at most at a worker that holds its hint; 0 if tenants have shares.

    *settings*: all settings in force, with defaults.
    """
    return 0.0 if settings["tenant_turns"] == SHARE else float(settings["locality_bonus"])


def seconds(priority: int, on_demand: bool, weights: Weights, *, bonus: float = 0.0) -> float:
    """Return D: a job that was enqueued D seconds after this one, or later, never runs before it.

        D = (Wp * (10 - priority) + Wr + bonus + (queued: Wo + Wa * cap)) / W

    with Wp, Wr, Wo, Wa and W the weights of priority, rarity, on-demand, its age, and age; *bonus*: see `bonus_in`.
    """
    lead = weights.priority * (MAX_PRIORITY - weights.read(priority)) + weights.rarity + bonus
    if not on_demand:
        lead += weights.on_demand + weights.on_demand_age * weights.on_demand_age_cap_us / SECOND_US
    return lead / weights.age


def longest_wait(
    priority: int, on_demand: bool, weights: Weights, *, ahead: int, arrivals: float, served: float
) -> float:
    """Return the longest wait in seconds, if jobs that share its slots arrive and are served at known rates.

    *ahead*: jobs that were waiting when the job came. *arrivals*, *served*: jobs a second that share its slots. At
    worst all jobs that waited before it, and all that came within D, run first.
    """
    return (ahead + arrivals * seconds(priority, on_demand, weights)) / served
