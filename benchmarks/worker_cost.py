"""Measure the cost of a task in the worker's main process: ``python -m benchmarks.worker_cost``.

callgrind counts the instructions of the process. Other load on the machine hardly affects this number. With
``--steps``, the benchmark instead measures the time of each processing step of a solo worker with strict claims.
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

#: Instructions are counted from task FIRST to task LAST. The worker runs _MORE tasks after that.
FIRST, LAST = 100, 500
_MORE = 60

#: Number of tasks whose steps are timed. Steps that occur in fewer than this share of the tasks are omitted.
_STEPPING, _SHARE = 3_000, 0.5


@dataclass(frozen=True)
class _Counted(Variant):
    """A worker under callgrind. *output*: prefix of callgrind's files."""

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
    parser.add_argument("--steps", action="store_true", help="measure the steps of a solo worker")
    parser.add_argument("--only", action="append", default=[], metavar="WORDS", help="as for `python -m benchmarks`")
    parser.add_argument("--before", type=Path, help="measure the worker of another checkout")
    arguments = parser.parse_args(words)
    system = BEFORE if arguments.before else AFFINITY
    source = arguments.before and arguments.before.resolve()
    with Bench() as bench:
        output = str(bench.directory / "cost")
        if arguments.steps:
            _print_steps(bench, _Stepping(system, "solo", source=source, output=output))
            return
        variants = [_Counted(FLOOR, "solo", output=output)]
        for pool in ("solo", "threads", "prefork"):
            variants.append(_Counted(STOCK, pool, prefetch=1, output=output))
            variants += [
                _Counted(system, pool, lookahead=ahead, source=source, output=output) for ahead in (0, LOOKAHEAD)
            ]
        only = tuple(frozenset(words.split()) for words in arguments.only)
        for variant in Options(parts=(), only=only).chosen(variants):
            _print_instructions(bench, variant)


def _print_instructions(bench: Bench, variant: _Counted) -> None:
    _, costs = run_all(bench, variant, LAST + _MORE)
    counted = Path(f"{variant.output}.1")  # callgrind also writes a file for the time after the dump
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
