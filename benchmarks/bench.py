"""The bench: starts a server, clients that publish and workers, and measures subjects in turn."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import redis

from celery_affinity.embedded import EmbeddedServer
from tests.support.processes import Process, wait_until

from .ledger import Ledger
from .meter import Meter
from .results import Part, Subject
from .systems import ROOT, Variant, waiting

#: Database in which workers run tasks. The other databases have the stored backlogs, one per database.
LIVE = 0

_BOOT_S = 60.0

S = TypeVar("S", bound=Subject)


class BenchmarkError(Exception):
    """A round is not valid, for example because it did not run each task once."""


class Publisher:
    """A client process of a system. It publishes tasks on request."""

    def __init__(self, variant: Variant, url: str, directory: Path) -> None:
        ledger = directory / "published"  # the app needs a ledger, but a client does not write to it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.apps.publisher", variant.system],
            cwd=directory,
            env={**os.environ, **variant.environment(url, ledger)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def publish(self, count: int, way: str = "delay", first: int = 0) -> dict[str, Any]:
        """Publish tasks numbered from *first* on. Return the duration `seconds` and the CPU time `cpu_s`."""
        return self._request({"how": "all at once", "way": way, "first": first, "count": count})

    def publish_one_at_a_time(self, count: int, ledger: Ledger) -> list[int]:
        """Publish each task after the previous one has started. Return the publish times in monotonic ns."""
        reply = self._request({"how": "one at a time", "count": count, "ledger": str(ledger.path)})
        return list(reply["published_ns"])

    def publish_by_chance(self, **streams: Any) -> dict[int, int]:
        """Publish two streams of tasks (see `apps.publisher.by_chance`). Return task number -> publish time in ns."""
        reply = self._request({"how": "by chance", **streams})
        return {int(number): ns for number, ns in reply["published_ns"].items()}

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None, "opened as a pipe"
        assert self._process.stdout is not None, "opened as a pipe"
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if not reply:
            raise BenchmarkError(f"a publisher ended with {self._process.wait()}")
        return dict(json.loads(reply))

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None, "opened as a pipe"
            self._process.stdin.close()


class Bench:
    """A context manager with a server and a temporary directory. *executable*: a server other than Valkey."""

    def __init__(self, executable: str | None = None) -> None:
        self.server = EmbeddedServer(executable=executable)
        self._stack = ExitStack()
        self._backlogs: dict[tuple[str, str, int], int] = {}
        self._publishers: dict[tuple[str, str], Publisher] = {}
        self._ports_away: dict[float, int] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
            stack.enter_context(self.server)
            self.client = stack.enter_context(self.client_of(LIVE))
            self.ledger = Ledger(self.directory / "ledger")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def url(self, database: int = LIVE) -> str:
        return f"{self.server.url.rpartition('/')[0]}/{database}"

    def _url_of(self, variant: Variant, database: int) -> str:
        """Return the URL for a worker of *variant*: the proxy's URL if the variant has extra latency."""
        if not variant.away_ms:
            return self.url(database)
        if variant.away_ms not in self._ports_away:
            port = str(urlsplit(self.server.url).port)
            words = [sys.executable, "-m", "benchmarks.far_away", port, str(variant.away_ms)]
            proxy = self._stack.enter_context(subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True))
            self._stack.callback(proxy.terminate)
            assert proxy.stdout is not None, "opened as a pipe"
            self._ports_away[variant.away_ms] = int(proxy.stdout.readline())
        return f"redis://127.0.0.1:{self._ports_away[variant.away_ms]}/{database}"

    def client_of(self, database: int) -> redis.Redis:
        return redis.Redis.from_url(self.url(database))

    def meter(self, pid: int | None = None) -> Meter:
        return Meter(self.client, pid)

    def publisher(self, variant: Variant, database: int = LIVE) -> Publisher:
        """Return the client of the variant's system for a database. It runs until the end of the bench."""
        key = variant.system, self.url(database)
        if key not in self._publishers:
            publisher = self._publishers[key] = Publisher(variant, key[1], self.directory)
            self._stack.callback(publisher.close)
        return self._publishers[key]

    @contextmanager
    def worker(self, variant: Variant, database: int = LIVE, ledger: Ledger | None = None) -> Iterator[Process]:
        """Run a worker of *variant*, and stop it with SIGTERM."""
        with self.killed_worker(variant, database, ledger) as process:
            yield process
            process.term()
            process.wait(20)

    @contextmanager
    def killed_worker(self, variant: Variant, database: int = LIVE, ledger: Ledger | None = None) -> Iterator[Process]:
        """Run a worker of *variant*, and kill it and its pool with SIGKILL."""
        ledger = self.ledger if ledger is None else ledger  # not `or`: an empty ledger is falsy
        environment = variant.environment(self._url_of(variant, database), ledger.path)
        process = Process(variant.name, variant.command(), environment, cwd=self.directory)
        try:
            yield process
        finally:
            process.end()

    def restock(self, variant: Variant, count: int, way: str = "delay") -> None:
        """Replace the database's content by a backlog of *count* messages of the variant's system.

        The system's own client publishes them once. Each round gets a copy.
        """
        key = variant.stored_as, way, count
        if key not in self._backlogs:
            database = self._backlogs[key] = len(self._backlogs) + 1
            self.publisher(replace(variant, system=variant.stored_as), database).publish(count, way)
        database = self._backlogs[key]
        self.client.flushdb()
        with self.client_of(database) as source:
            stored = waiting(variant.stored_as, source)
            if stored != count:
                raise BenchmarkError(f"{stored} messages of {variant.stored_as} wait, not {count}")
            names = list(source.scan_iter(count=1000))
            for first in range(0, len(names), 1000):
                with source.pipeline(transaction=False) as pipe:
                    for name in names[first : first + 1000]:
                        pipe.copy(name, name, destination_db=LIVE)
                    pipe.execute()

    def wait_for_tasks(self, process: Process, count: int, ledger: Ledger | None = None, quiet_s: float = 30) -> None:
        """Wait until *count* tasks have started. Fail if no task starts within *quiet_s* seconds."""
        ledger = self.ledger if ledger is None else ledger

        def grown() -> bool:
            if not process.is_running:
                raise BenchmarkError(f"{process.name} ended. Its log:\n{process.log()}")
            return len(ledger) > before

        before = len(ledger)
        while before < count:
            limit_s = quiet_s if before else _BOOT_S
            wait_until(grown, limit_s, f"{process.name} ran {before} of {count}. Its log:\n{process.log()}")
            before = len(ledger)


def print_progress(text: str) -> None:
    """Print progress to stderr, because stdout has the results."""
    print(f"  {text}", file=sys.stderr, flush=True)


def in_turn(subjects: Sequence[S], rounds: int, measure: Callable[[S], dict[str, float]]) -> Part:
    """Measure all *subjects* in turn, for *rounds* rounds, so that other load on the machine affects all of them.

    Every second round has the reverse order, so that no subject always follows the same other subject.
    """
    part = Part()
    for round_ in range(1, rounds + 1):
        for subject in subjects if round_ % 2 else reversed(subjects):
            figures = measure(subject)
            part.add(subject, figures)
            line = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
            print_progress(f"{round_}/{rounds}  {subject.name}: {line}")
    return part
