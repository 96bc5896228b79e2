"""A release to run: the working tree, a kept wheel, or a git ref."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...support.processes import ROOT, WorkerProcess
from ..release import building

OUTPUT = ROOT / "build" / "upgrade"
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Release:
    name: str
    python: str
    #: Folder for ``PYTHONPATH``, unless the release is installed for *python*.
    path: str = ""

    def environment(self, url: str, folder: Path) -> dict[str, str]:
        return {"PYTHONPATH": f"{folder}:{self.path}".rstrip(":"), "BROKER_URL": url}

    def worker(self, name: str, queues: str, slots: int, url: str, folder: Path) -> WorkerProcess:
        words = ["worker", "-Q", queues, "-P", "threads", "-c", str(slots), "-n", f"{name}@host", "-l", "INFO"]
        command = [self.python, "-m", "celery", "-A", "shop", *words]
        worker = WorkerProcess(f"{name} of {self.name}", command, self.environment(url, folder), folder)
        worker.wait_ready(60)
        return worker

    def run(self, url: str, folder: Path, *words: str) -> str:
        """Run a program of the release, which must succeed; return its output."""
        done = self._run(url, folder, words)
        assert done.returncode == 0, f"{self.name} {' '.join(words)}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def error_of(self, url: str, folder: Path, *words: str) -> str:
        """Run a program of the release, which must fail; return its output."""
        done = self._run(url, folder, words)
        assert done.returncode != 0, f"{self.name} {' '.join(words)} must fail:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _run(self, url: str, folder: Path, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, **self.environment(url, folder)}
        command = [self.python, *words]
        return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=90, check=False)

    def publish(self, url: str, folder: Path, calls: Sequence[object]) -> None:
        self.run(url, folder, "calls.py", json.dumps(calls))

    def results(self, url: str, folder: Path, ids: Sequence[str]) -> dict[str, object]:
        printed = self.run(url, folder, "calls.py", json.dumps(ids))
        return dict(json.loads(line) for line in printed.splitlines())

    def status(self, url: str, folder: Path) -> dict[str, int]:
        """Return the numbers of jobs by state."""
        found = json.loads(self.run(url, folder, "-m", "celery", "-A", "shop", "affinity", "status", "--json"))
        counts = {state: sum(each[state] for each in found["types"]) for state in ("pending", "claimed")}
        return {**counts, "scheduled": found["scheduled"], "dead": found["dead"]}


TREE = Release("tree", sys.executable, str(ROOT))


def release_of(name: str) -> Release:
    """Install a wheel or a git ref into a new environment."""
    output = OUTPUT / Path(name).name.replace("/", "-")
    wheel = Path(name)
    if wheel.suffix != ".whl":
        (wheel,) = [each for each in building.build(name, output / "built") if each.suffix == ".whl"]
    return Release(name, str(building.install(sys.executable, output / "environment", wheel.resolve())))


def copy_app(folder: Path) -> None:
    for name in ("shop.py", "calls.py"):
        shutil.copy(HERE / name, folder / name)
