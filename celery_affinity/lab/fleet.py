"""The fleet of a trace: how many slots serve which types, and whose they are."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .profiles import types_of
from .trace import TracedWorker


@dataclass(frozen=True)
class Members:
    """Workers that serve the same *types*. *slots*: the largest number that there was at once.

    *workers*: name -> slots, of its last stay. *stays*: whether all were there for the whole trace, under no other
    types or slots: then taking some of them away leaves the others as they were.
    """

    types: tuple[str, ...]
    slots: int
    workers: Mapping[str, int]
    stays: bool


def fleet(workers: Sequence[TracedWorker]) -> list[Members]:
    """Return the members of each profile, in the order in which the first of them joined."""
    stays = Counter(each.name for each in workers)
    found: dict[tuple[str, ...], list[TracedWorker]] = {}
    for each in workers:
        found.setdefault(types_of(each), []).append(each)
    return [
        Members(
            types,
            _most_at_once(members),
            {each.name: each.slots for each in members},
            all(each.joined_us <= 0 and each.left_us is None and stays[each.name] == 1 for each in members),
        )
        for types, members in found.items()
    ]


def _most_at_once(members: Sequence[TracedWorker]) -> int:
    """Return the largest number of slots at any time. One that leaves as another one joins makes room for that."""
    moves = [(each.joined_us, each.slots) for each in members]
    moves += [(each.left_us, -each.slots) for each in members if each.left_us is not None]
    most = there = 0
    for _, change in sorted(moves):
        there += change
        most = max(most, there)
    return most
