"""Show scheduling rules on a worker: exclusive keys, limits, rates, order and pauses.

    python -m examples.routes.rules

The example starts its own server unless REDIS_URL is set. It takes some ten seconds.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from examples.comparing.processes import Processes
from examples.comparing.program import BOOT_S, DemoError

APP = "examples.routes.rules.tasks"
WORKER = ("celery", "-A", APP, "worker", "-Q", "route,traffic", "-P", "threads", "-c", "6", "-l", "INFO")
COLUMNS_PER_S = 10
Run = tuple[str, float, float]


def main() -> None:
    with _server() as url, tempfile.TemporaryDirectory() as folder:
        os.environ["REDIS_URL"] = url
        with Processes(Path(folder), {"REDIS_URL": url}) as processes:
            processes.python("worker", *WORKER)
            from examples.routes.rules import scenes  # after REDIS_URL is set, because the import creates the app

            _wait_for_worker(processes, scenes.is_ready)
            print("One worker with six slots. Each job has its own letter, and a letter is a tenth of a second wide.")
            for title, scene in scenes.SCENES.items():
                print(f"\n{title}", flush=True)
                _draw(scene())


def _draw(rows: dict[str, Sequence[Run]]) -> None:
    """Print a timeline for each row. Runs that overlap are on separate lines."""
    start_s = min(began for runs in rows.values() for _, began, _ in runs)
    for name, runs in rows.items():
        lines: list[str] = []
        for letter, began, ended in sorted(runs, key=lambda run: run[1]):
            first, end = (round((at_s - start_s) * COLUMNS_PER_S) for at_s in (began, ended))
            row = next((nth for nth, line in enumerate(lines) if len(line) <= first), len(lines))
            before = lines[row] if row < len(lines) else ""
            lines[row : row + 1] = [before.ljust(first) + letter * max(1, end - first)]
        for nth, line in enumerate(lines):
            print(f"  {name if nth == 0 else '':8} {line}", flush=True)


def _wait_for_worker(processes: Processes, is_ready) -> None:
    deadline = time.monotonic() + BOOT_S
    while not is_ready():
        if processes.failed() or time.monotonic() > deadline:
            raise DemoError(processes.log("worker").read_text())
        time.sleep(0.1)


@contextmanager
def _server() -> Iterator[str]:
    if "REDIS_URL" in os.environ:
        yield os.environ["REDIS_URL"]
        return
    from celery_affinity.embedded import EmbeddedServer

    with EmbeddedServer() as server:
        yield server.url


if __name__ == "__main__":
    try:
        main()
    except DemoError as exc:
        sys.exit(f"The worker did not start:\n{exc}")
