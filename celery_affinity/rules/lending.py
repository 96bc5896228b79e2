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

#: Number of jobs in buffers after which a worker takes no more of their types, unless Celery's prefetch is higher.
MOST_BUFFERED = 1_000


def most_buffered(prefetch_multiplier: int, slots: int) -> int:
    """Return the number of jobs that a worker holds in the buffers of its tasks' strategies.

    On a stock transport this is the prefetch count: concurrency by ``worker_prefetch_multiplier``. Here that setting
    can only raise the number. 0, which means no limit there, does not: one buffer would take the jobs of a fleet.
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
