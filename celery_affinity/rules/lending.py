"""Slots that a worker lends while jobs wait there for a rate limit, and the types of which it takes no more jobs."""

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Lending(NamedTuple):
    """*lent*: slots that are free though claims hold them. *withdrawn*: types of which no more jobs are wanted now."""

    lent: int
    withdrawn: frozenset[str]


NOTHING_LENT = Lending(0, frozenset())


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
