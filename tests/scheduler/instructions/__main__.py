"""Cost of each server function in instructions, compared with the recorded numbers.

make instructions                       # on Valkey, and on redis-server if it is installed
make instructions ARGS=--record         # record the new numbers
"""

import argparse
import shutil
import sys
from collections.abc import Sequence

from .counter import build_of
from .functions import FLEETS
from .measuring import costs
from .recorded import Cost, Costs, Recorded


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make instructions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="keep the numbers")
    parser.add_argument("--server", action="append", help="an executable; Valkey and redis-server by default")
    arguments = parser.parse_args(words)
    executables = arguments.server or [None, *filter(None, [shutil.which("redis-server")])]
    recorded, measured = Recorded(), dict[str, dict[str, Cost]]()
    for executable in executables:
        build = build_of(executable)
        print(f"{build:34}{'instructions':>14}{'recorded':>12}{'':>8}{'commands':>10}")
        found = measured[build] = {}
        for fleet in FLEETS:
            some = costs(fleet, executable)
            print(_table(some, recorded.instructions(build) or {}), flush=True)
            found |= some
        print(f"{recorded.not_compared(build, found)}\n")
    if arguments.record:
        for build in recorded.record(measured):
            print(f"The numbers of {build} were old, and are no longer recorded: it is not installed here")
    return 0


def _table(costs: Costs, recorded: dict[str, int]) -> str:
    lines = []
    for name, cost in costs.items():
        now, before = cost.instructions, recorded.get(name)
        shown = "-" if now is None else f"{now:,}"
        known, change = ("-", "") if before is None else (f"{before:,}", f"{now / before - 1:+.1%}" if now else "")
        lines.append(f"{name:34}{shown:>14}{known:>12}{change:>8}{cost.commands_in_all:>10.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
