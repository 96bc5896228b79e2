"""Slots that a worker lends while jobs wait there, and the types of which it takes no more jobs meanwhile.

Jobs wait for a rate limit, or in the buffer of a task's own strategy.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Lending(NamedTuple):
    """*lent*: slots that are free though claims hold them. *withdrawn*: types of which no more jobs are wanted now."""

    lent: int
    withdrawn: frozenset[str]


NOTHING_LENT = Lending(0, frozenset())

#: Number of buffered jobs at which a worker stops claiming jobs of their types, unless Celery's prefetch is higher.
MOST_BUFFERED = 1_000


def most_buffered(prefetch_multiplier: int, slots: int) -> int:
    """Return the maximum number of jobs in the buffers of a worker's custom strategies.

    On a stock transport, the maximum is the prefetch count: concurrency times ``worker_prefetch_multiplier``. Here that
    setting can only raise the maximum. The multiplier 0 (no limit on a stock transport) does not raise it, because one
    buffer would claim all jobs of a fleet.
    """
    return max(MOST_BUFFERED, prefetch_multiplier * slots)


def lending(waiting: Mapping[str, int], types: Collection[str], slots: int) -> Lending:
    """Return the lending of a worker that serves *types*. *waiting*: number of jobs that wait there, by type.

    Each slot that is lent may bring one more job to wait. So while more jobs wait than half the slots, the worker
    serves its other types alone; a worker that has no others lends half its slots at most.
    """
    most = slots // 2
    total = sum(waiting.values())
    if total <= most:
        return Lending(total, frozenset())
    withdrawn = frozenset(type_ for type_ in types if waiting.get(type_))
    if withdrawn == frozenset(types):
        return Lending(most, frozenset())
    return Lending(total, withdrawn)
