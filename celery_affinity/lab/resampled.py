"""Days that could have been: a trace whose blocks of arrivals are drawn again, from nearby.

A block is replaced by one that lies at most two blocks away, so the rhythm of the day stays, and floods move, come
twice or stay away. What waited as the trace began stays.
"""

import random
from dataclasses import replace

from .scenario import Arrival, Scenario

_BLOCKS, _REACH = 24, 2


def resampled(scenario: Scenario, seed: int) -> Scenario:
    """Return *scenario* with blocks of arrivals drawn at random; the same ones for the same *seed*."""
    jobs = scenario.arrivals
    drawn = random.Random(seed)  # noqa: S311 - no secret
    width_us = max((each.since_us for each in jobs), default=0) // _BLOCKS + 1
    blocks: list[list[Arrival]] = [[] for _ in range(_BLOCKS)]
    found = [each for each in jobs if each.since_us <= 0]
    for each in jobs:
        if each.since_us > 0:
            blocks[each.since_us // width_us].append(each)
    for place in range(_BLOCKS):
        other = drawn.randint(max(0, place - _REACH), min(_BLOCKS - 1, place + _REACH))
        later_us = (place - other) * width_us
        found += [
            replace(each, since_us=each.since_us + later_us, enqueued_us=each.enqueued_us + later_us)
            for each in blocks[other]
        ]
    found.sort(key=lambda each: (each.since_us, each.number))
    return replace(scenario, arrivals=tuple(replace(each, number=number) for number, each in enumerate(found)))
