"""What keeps a job back although a slot is free: exclusive keys, rates, and limits of types.

A list schedule asks before each start. Limits that settings have for patterns of keys are not among them: a trace has
hashes in place of keys. Nor are reserves, shares and quotas, which say who goes first, not what is possible.
"""

import heapq

from ..rules.addresses import OF_TYPE
from ..rules.keyed.key_rules import as_stated, is_rate
from .known_rules import limits_of_types
from .scenario import Arrival, Scenario


class Gates:
    """The gates of one schedule in the making; times in µs."""

    def __init__(self, scenario: Scenario) -> None:
        self._arrivals = scenario.arrivals
        self._of_types = limits_of_types(scenario.settings.get("limits", ""))
        self._running: dict[str, int] = {}
        self._free_at_us: dict[
            str, list[int]
        ] = {}  # key of a rate -> when each of its starts is free again, the latest last
        self._kept: dict[str, list[tuple[float, int]]] = {}

    def closed(self, index: int, place: float, now_us: int) -> int | None:
        """Return None if the arrival at *index* may start; else the time at which it may.

        *now_us* stands for a time that an end will tell: `ended` then returns the index.
        """
        arrival = self._arrivals[index]
        for key, limit in self._limits(arrival):
            if self._running.get(key, 0) >= limit:
                heapq.heappush(self._kept.setdefault(key, []), (place, index))
                return now_us
        if arrival.rate and arrival.rate_limit:
            starts, _ = _rate(arrival.rate_limit)
            free_at_us = self._free_at_us.get(arrival.rate, [])
            if len(free_at_us) >= starts and free_at_us[-starts] > now_us:
                return free_at_us[-starts]
        return None

    def started(self, arrival: Arrival, now_us: int) -> None:
        for key, _ in self._limits(arrival):
            self._running[key] = self._running.get(key, 0) + 1
        if arrival.rate and arrival.rate_limit:
            starts, period_us = _rate(arrival.rate_limit)
            free_at_us = self._free_at_us.setdefault(arrival.rate, [])
            # Starts become free again evenly: each one a share of the period after the one before.
            before_us = free_at_us[-1] if free_at_us else now_us
            free_at_us.append(max(now_us, before_us) + -(-period_us // starts))
            del free_at_us[:-starts]

    def ended(self, arrival: Arrival) -> list[int]:
        """Return the indexes of arrivals that may try again, since *arrival* ended: one for each of its limits."""
        let_in = []
        for key, _ in self._limits(arrival):
            self._running[key] -= 1
            if kept := self._kept.get(key):
                let_in.append(heapq.heappop(kept)[1])
        return let_in

    def _limits(self, arrival: Arrival) -> list[tuple[str, int]]:
        found = []
        if arrival.type in self._of_types:
            found.append((OF_TYPE + arrival.type, self._of_types[arrival.type]))
        if arrival.exclusive:
            found.append((arrival.exclusive, int(arrival.exclusive_limit or 1)))
        return found


def _rate(limit: str) -> tuple[int, int]:
    """Return the starts and the period, µs, of a rate such as "10/m", or as the arrows have it."""
    starts, _, period = (as_stated(limit) if is_rate(limit) else limit).partition("/")
    return int(starts), int(period)
