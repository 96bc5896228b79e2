"""What a worker's main process does for a task that is drained: ``python -m benchmarks.worker_cost``.

Counts the instructions of that process with callgrind, which other load hardly changes. ``--steps``: instead, the time
of each step of a solo worker with strict claims, from one wait for the server to the next.
"""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .bench import Bench
from .drain import run_all
from .options import Options
from .systems import AFFINITY, BEFORE, FLOOR, LOOKAHEAD, STOCK, Variant

#: Numbers of the tasks between which instructions are counted. The worker runs some after the last of them.
FIRST, LAST = 100, 500
_MORE = 60

#: Tasks whose steps are timed; steps that fewer than this share of them take are left out.
_STEPPING, _SHARE = 3_000, 0.5


@dataclass(frozen=True)
class _Counted(Variant):
    """A worker under callgrind, which writes files that begin with *output*."""

    app: str = "counted_app"
    output: str = ""

    def command(self) -> list[str]:
        files = f"--callgrind-out-file={self.output}"
        return ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--trace-children=no", files, *super().command()]

    def environment(self, url: str, ledger: Path) -> dict[str, str]:
        return {**super().environment(url, ledger), "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class _Stepping(Variant):
    app: str = "stepping_app"
    output: str = ""

    def environment(self, url: str, ledger: Path) -> dict[str, str]:
        return {**super().environment(url, ledger), "BENCHMARK_STEPS": self.output}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker_cost", description=__doc__)
    parser.add_argument("--steps", action="store_true", help="the times of a solo worker's steps")
    parser.add_argument("--only", action="append", default=[], metavar="WORDS", help="as of `python -m benchmarks`")
    parser.add_argument("--before", type=Path, help="another checkout, whose worker is measured")
    arguments = parser.parse_args(words)
    system = BEFORE if arguments.before else AFFINITY
    source = arguments.before and arguments.before.resolve()
    with Bench() as bench:
        output = str(bench.directory / "cost")
        if arguments.steps:
            _print_steps(bench, _Stepping(system, "solo", source=source, output=output))
            return
        found = [_Counted(FLOOR, "solo", output=output)]
        for pool in ("solo", "threads", "prefork"):
            found.append(_Counted(STOCK, pool, prefetch=1, output=output))
            found += [_Counted(system, pool, lookahead=ahead, source=source, output=output) for ahead in (0, LOOKAHEAD)]
        only = tuple(frozenset(each.split()) for each in arguments.only)
        for variant in Options(parts=(), only=only).chosen(found):
            _print_instructions(bench, variant)


def _print_instructions(bench: Bench, variant: _Counted) -> None:
    _, costs = run_all(bench, variant, LAST + _MORE)
    counted = Path(f"{variant.output}.1")  # the first is of the time after the dump
    (total,) = re.findall(r"^totals: (\d+)", counted.read_text(), re.MULTILINE)
    counted.unlink()
    print(f"{variant.name}: {int(total) / (LAST - FIRST):,.0f} instructions, {costs['requests']:.2f} requests")


def _print_steps(bench: Bench, variant: _Stepping) -> None:
    run_all(bench, variant, _STEPPING)
    for step, following, times, median_us in json.loads(Path(variant.output).read_text()):
        if times > _SHARE * _STEPPING:
            print(f"{step:>9} -> {following:<9} {median_us:6.1f} us, {times / _STEPPING:.1f} times")


if __name__ == "__main__":
    main()
