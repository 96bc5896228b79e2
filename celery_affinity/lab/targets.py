"""Targets of waits, as people type them: ``pdf:p95<5s``, ``on-demand:p99<1s``, ``all:p50<200ms``."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

from ..errors import OptionError
from .scenario import Arrival, Scenario
from .schedule import Schedule
from .waits import waits_by_job

#: What a target may be about, beside the types of a trace.
ALL, ON_DEMAND, QUEUED = "all", "on-demand", "queued"

ACCEPTED = "TYPE, on-demand, queued or all, then a percentile and a time, such as 'pdf:p95<5s' or 'all:p50<200ms'"

_TARGET = re.compile(
    r"(?P<whose>.+):p(?P<percent>\d{1,2}(?:\.\d{1,9})?)<(?P<number>\d{1,9}(?:\.\d{1,9})?)(?P<unit>ms|s|m|h)"
)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Target:
    """Of the jobs of *whose*, *percent* per cent are to wait less than *below_s*."""

    whose: str
    percent: float
    below_s: float
    text: str

    def counts(self, arrival: Arrival) -> bool:
        if self.whose in (ON_DEMAND, QUEUED):
            return arrival.on_demand == (self.whose == ON_DEMAND)
        return self.whose in (ALL, arrival.type)

    def wait_s(self, schedule: Schedule) -> float:
        """Return the percentile of the waits: infinity if so many jobs were never claimed, 0 without such jobs."""
        waits_us = waits_by_job(schedule)
        found = [waits_us[each.number] for each in schedule.scenario.arrivals if self.counts(each)]
        ordered = sorted(math.inf if wait_us is None else wait_us for wait_us in found)
        return ordered[max(0, math.ceil(self.percent / 100 * len(ordered)) - 1)] / 1e6 if ordered else 0.0


def parse(text: str, types: Collection[str]) -> Target:
    """Return the target in *text*. Raises OptionError for another form, and for a type that is not one of *types*."""
    found = _TARGET.fullmatch(text.replace(" ", ""))
    if found is None or not 0 < float(found["percent"]) < 100:
        raise OptionError(f"--target takes {ACCEPTED}, got: {text!r}")
    whose = found["whose"]
    if whose not in (ALL, ON_DEMAND, QUEUED, *types):
        known = ", ".join(sorted(types))
        raise OptionError(f"--target names {whose!r}, but the trace has jobs of {known}: {text!r}")
    below_s = float(found["number"]) * _UNITS_S[found["unit"]]
    return Target(whose, float(found["percent"]), below_s, text)


def has_jobs(target: Target, scenario: Scenario) -> bool:
    return any(target.counts(each) for each in scenario.arrivals)
