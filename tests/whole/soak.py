"""A long steady load: do memory, latency and file descriptors stay flat? ``make soak`` runs ten minutes.

    python -m tests.whole.soak --seconds 600 --write-docs

The rate is 90 % of the highest rate with a short queue, which the first minute finds. Above that rate the queue grows,
and latency depends only on the time since the start.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.pages import RESULTS, write_block
from ..support.processes import ROOT, Process, running_processes, start_worker

APP = "tests.support.apps.steady"
FLEET = (
    ("pdf", "prefork", 2, ("pdf",)),
    ("office", "threads", 4, ("pdf", "excel")),
    ("versatile", "prefork", 2, ("pdf", "excel", "index")),
)
WINDOW_S = 60
SHORT_QUEUE = 20
SHARE = 0.9

#: Maximum growth, as a fraction, and of file descriptors, from the first steady minute to the last.
GROWTH, MORE_FILES = 0.05, 2


@dataclass
class Window:
    """Figures of one minute."""

    minute: int
    rate: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    server_mb: float
    workers_mb: float
    dispatcher_mb: float
    files: int


class Soak:
    """A fleet under load; its tasks write into *directory*."""

    def __init__(self, server: EmbeddedServer, client: redis.Redis, directory: Path) -> None:
        self._client = client
        self._report = Report(Reader(client, Keys()))
        self._server = psutil.Process(server.pid)
        ledger = directory / "ledger"
        ledger.touch()
        self._ledger = ledger.open()
        env = {"LEDGER": str(ledger), "BROKER_URL": server.url}
        self._workers = [
            start_worker(APP, server.url, types, name=name, pool=pool, concurrency=slots, env=env)
            for name, pool, slots, types in FLEET
        ]
        for worker in self._workers:
            worker.wait_ready(60)
        celery = [sys.executable, "-m", "celery", "-A", APP]
        self._dispatcher = Process("dispatcher", [*celery, "affinity", "dispatcher"], env)
        self._publisher = subprocess.Popen(
            [sys.executable, "-m", APP], cwd=ROOT, env={**os.environ, **env}, stdin=subprocess.PIPE, text=True
        )

    def end(self) -> None:
        self._publisher.stdin.close()
        self._publisher.wait(30)
        for process in running_processes():
            process.end()

    def publish_at(self, rate: float) -> None:
        self._publisher.stdin.write(f"{rate}\n")
        self._publisher.stdin.flush()

    def find_rate(self, seconds: float) -> float:
        """Return the highest steady rate, in jobs per second.

        The rate is increased while the queue is short, and decreased when the queue grows or the publisher cannot keep
        up.
        """
        rate, kept = 100.0, []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.publish_at(rate)
            self._ledger.read()
            began_s = time.monotonic()
            time.sleep(2)
            started = self._ledger.read().count("\n") / (time.monotonic() - began_s)
            if self._pending() <= SHORT_QUEUE and started > 0.9 * rate:
                kept.append(started)
                rate *= 1.15
            else:
                rate *= 0.85
        self.publish_at(1)
        while self._pending():
            time.sleep(0.1)
        later = kept[len(kept) // 2 :]
        return sum(later) / len(later)

    def window(self, minute: int) -> Window:
        """Measure the next minute."""
        self._ledger.read()
        began_s = time.monotonic()
        time.sleep(WINDOW_S)
        waits_ms = sorted(1000 * float(line.split()[1]) for line in self._ledger.read().splitlines())
        took_s = time.monotonic() - began_s
        workers = [each for worker in self._workers for each in _family(psutil.Process(worker.pid))]
        dispatcher = psutil.Process(self._dispatcher.pid)
        return Window(
            minute,
            len(waits_ms) / took_s,
            waits_ms[len(waits_ms) // 2],
            waits_ms[len(waits_ms) * 99 // 100],
            waits_ms[-1],
            self._client.info("memory")["used_memory"] / 1e6,
            sum(each.memory_full_info().pss for each in workers) / 1e6,
            dispatcher.memory_info().rss / 1e6,
            sum(each.num_fds() for each in (*workers, dispatcher, self._server)),
        )

    def _pending(self) -> int:
        return sum(each.pending for each in self._report.status().types)


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def growth(windows: list[Window]) -> list[str]:
    """Return the figures that grew from the third minute to the last; ended jobs are remembered for one minute."""
    first, last = windows[min(2, len(windows) - 1)], windows[-1]
    found = [
        f"{name} grew from {before:.1f} to {after:.1f}"
        for name in ("server_mb", "workers_mb", "dispatcher_mb")
        for before, after in [(getattr(first, name), getattr(last, name))]
        if after > before * (1 + GROWTH) + 1
    ]
    if last.files > first.files + MORE_FILES:
        found.append(f"open files grew from {first.files} to {last.files}")
    return found


def as_markdown(windows: list[Window]) -> str:
    jobs = sum(each.rate * WINDOW_S for each in windows)
    slots = sum(slots for _, _, slots, _ in FLEET)
    header = ("minute", "jobs/s", "wait p50", "p99", "longest", "server", "workers", "dispatcher", "open files")
    rows = [header, ("---:",) * len(header)]
    rows += [
        (
            *(str(each.minute), f"{each.rate:.0f}"),
            *(f"{value:.1f} ms" for value in (each.p50_ms, each.p99_ms, each.worst_ms)),
            *(f"{value:.1f} MB" for value in (each.server_mb, each.workers_mb, each.dispatcher_mb)),
            str(each.files),
        )
        for each in windows
    ]
    summary = (
        f"{jobs:,.0f} jobs in {len(windows)} minutes, on {len(FLEET)} workers with {slots} slots, "
        f"{psutil.cpu_count()} cores for all of it (publisher and server too):"
    )
    return "\n".join([summary, "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.whole.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="duration after the search for the rate")
    parser.add_argument("--search-seconds", type=float, default=60, help="duration of the search for the highest rate")
    parser.add_argument(
        "--share", type=float, default=SHARE, help=f"fraction of the highest rate to publish; {SHARE} by default"
    )
    parser.add_argument("--write-docs", action="store_true", help="write the results into benchmarks/results/soak.md")
    options = parser.parse_args()
    with (
        EmbeddedServer() as server,
        redis.Redis.from_url(server.url) as client,
        tempfile.TemporaryDirectory() as directory,
    ):
        soak = Soak(server, client, Path(directory))
        try:
            highest = soak.find_rate(options.search_seconds)
            rate = options.share * highest
            print(f"the highest steady rate is {highest:.0f} jobs/s; publishing {rate:.0f} jobs/s", flush=True)
            soak.publish_at(rate)
            windows = []
            for minute in range(1, max(1, round(options.seconds / WINDOW_S)) + 1):
                windows.append(soak.window(minute))
                print(windows[-1], flush=True)
        finally:
            soak.end()
    print(as_markdown(windows))
    if options.write_docs:
        write_block(RESULTS / "soak.md", "soak", as_markdown(windows))
    grown = growth(windows)
    print("\n".join(grown) or "flat")
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
