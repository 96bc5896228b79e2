"""The order of the tests in a run of several processes, of which each begins with an equal stretch of them."""

from collections.abc import Iterable
from pathlib import Path

#: Folders whose tests take longest: they come first, so that none is begun when all others have ended.
_LONGEST = {"conformance", "docs", "whole", "worker"}


def dealt(modules: Iterable[Path], processes: int) -> list[Path]:
    """Return *modules* as so many stretches, each with a share of every folder.

    So tests that compute run beside tests that wait, from the beginning to the end.
    """
    longest_first = sorted(modules, key=lambda path: _LONGEST.isdisjoint(path.parts))
    return [path for nth in range(processes) for path in longest_first[nth::processes]]
