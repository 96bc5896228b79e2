"""What-if: changes of a scenario, and the scenario that they make."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .scenario import Arrival, Scenario
from .trace import TracedWorker


@dataclass(frozen=True)
class Changes:
    """*settings*: by their name in Redis, as text. *add*: types and slots of each further worker, from the beginning.

    *remove*: names of workers that are never there. *rates*: type -> by how much more jobs of it arrive. *priorities*:
    type -> that of its jobs. *seed*: of the choice of arrivals that are repeated or left out.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    add: Sequence[tuple[tuple[str, ...], int]] = ()
    remove: Sequence[str] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)
    seed: int = 1


def changed(scenario: Scenario, changes: Changes) -> Scenario:
    """Return *scenario* with *changes*. Jobs that are left keep their numbers; further ones have higher numbers."""
    arrivals = [_with_priority(each, changes.priorities) for each in scenario.arrivals]
    for type_, factor in changes.rates.items():
        arrivals = _resampled(arrivals, type_, factor, changes.seed)
    arrivals.sort(key=lambda each: (each.since_us, each.number))
    return Scenario(
        _workers(scenario.workers, changes),
        tuple(arrivals),
        {**scenario.settings, **changes.settings},
        scenario.paused,
    )


def _with_priority(arrival: Arrival, priorities: Mapping[str, int]) -> Arrival:
    if arrival.type not in priorities:
        return arrival
    return replace(arrival, priority=priorities[arrival.type])


def _workers(workers: Sequence[TracedWorker], changes: Changes) -> tuple[TracedWorker, ...]:
    kept = [each for each in workers if each.name not in changes.remove]
    added = [TracedWorker(f"added-{nth}@lab", types, slots) for nth, (types, slots) in enumerate(changes.add, 1)]
    return (*kept, *added)


def _resampled(arrivals: Sequence[Arrival], type_: str, factor: float, seed: int) -> list[Arrival]:
    """Return *arrivals* with *factor* times as many of *type_*, in the same rhythm.

    A job that is repeated comes again at a random time before the next one of its type, so floods and pauses stay
    where they are. What waited at the beginning stays as it is.
    """
    chance = random.Random(f"{seed} {type_}")  # noqa: S311  # no secret
    kept = [each for each in arrivals if each.type != type_ or each.since_us <= 0]
    some = [each for each in arrivals if each.type == type_ and each.since_us > 0]
    whole, rest = divmod(round(len(some) * factor), len(some)) if some else (0, 0)
    chosen = set(chance.sample(range(len(some)), rest))
    number = max((each.number for each in arrivals), default=0)
    for nth, arrival in enumerate(some):
        times = whole + (nth in chosen)
        kept += [arrival] if times else []
        gap_us = some[nth + 1].since_us - arrival.since_us if nth + 1 < len(some) else 0
        for _ in range(times - 1):
            number += 1
            later_us = chance.randint(0, gap_us)
            kept.append(
                replace(
                    arrival,
                    number=number,
                    since_us=arrival.since_us + later_us,
                    enqueued_us=arrival.enqueued_us + later_us,
                )
            )
    return kept
