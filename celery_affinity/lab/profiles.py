"""The profile of a worker: the set of types that it serves."""

from collections.abc import Iterable

from .schedule import Run
from .trace import TracedWorker

#: The types, each once, in their order.
Profile = tuple[str, ...]


def types_of(worker: TracedWorker) -> Profile:
    return tuple(sorted(set(worker.types)))


class Profiles:
    """The profiles of *workers*, of which several may have one name, one after the other."""

    def __init__(self, workers: Iterable[TracedWorker]) -> None:
        self._rows: dict[str, list[tuple[int, Profile]]] = {}
        for each in workers:
            self._rows.setdefault(each.name, []).append((each.joined_us, types_of(each)))
        for rows in self._rows.values():
            rows.sort()

    def of(self, run: Run) -> Profile:
        """Return the profile of the worker that ran *run*, when it claimed it."""
        rows = self._rows[run.worker]
        there = (profile for joined_us, profile in reversed(rows) if joined_us <= run.claimed_us)
        return next(there, rows[0][1])
