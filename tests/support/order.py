"""The order of the tests in a run of several processes; each process begins with an equal stretch of them."""

from collections.abc import Iterable
from pathlib import Path

#: Folders with the longest tests. They run first, or one would still run after all others have ended.
_LONGEST = {"conformance", "docs", "whole", "worker"}


def dealt(modules: Iterable[Path], processes: int) -> list[Path]:
    """Return *modules* as one stretch per process, each with a share of every folder.

    So tests that compute run in parallel with tests that wait, from start to end.
    """
    longest_first = sorted(modules, key=lambda path: _LONGEST.isdisjoint(path.parts))
    return [path for nth in range(processes) for path in longest_first[nth::processes]]
