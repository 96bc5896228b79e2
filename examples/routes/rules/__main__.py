"""Show what may start, and when: one at a time, at a rate, in order, within a limit, and not at all for a while.

    python -m examples.routes.rules

REDIS_URL names the server; without it, one is started for the example. It takes some ten seconds.
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
            from examples.routes.rules import scenes  # not before the address of the server is known

            _wait_for_the_worker(processes, scenes.is_ready)
            print("One worker with six slots. A sign is a job; a tenth of a second is as wide as a letter.")
            for title, scene in scenes.SCENES.items():
                print(f"\n{title}", flush=True)
                _draw(scene())


def _draw(rows: dict[str, Sequence[Run]]) -> None:
    """Print a line for each row: its runs, beside each other as they were in time, and below each other if at once."""
    start_s = min(began for runs in rows.values() for _, began, _ in runs)
    for name, runs in rows.items():
        lines: list[str] = []
        for sign, began, ended in sorted(runs, key=lambda run: run[1]):
            first, end = (round((at_s - start_s) * COLUMNS_PER_S) for at_s in (began, ended))
            free = next((nth for nth, line in enumerate(lines) if len(line) <= first), len(lines))
            before = lines[free] if free < len(lines) else ""
            lines[free : free + 1] = [before.ljust(first) + sign * max(1, end - first)]
        for nth, line in enumerate(lines):
            print(f"  {name if nth == 0 else '':8} {line}", flush=True)


def _wait_for_the_worker(processes: Processes, is_ready) -> None:
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
        sys.exit(f"the worker does not start:\n{exc}")
