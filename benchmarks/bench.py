"""The bench: a server, clients that publish, workers that run; and rounds in turn."""

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

#: Databases of the server: tasks are run in the first, each system's backlog is kept in one of the others.
LIVE = 0

_BOOT_S = 60.0

S = TypeVar("S", bound=Subject)


class BenchmarkError(Exception):
    """A round that did not run each task once says nothing about speed."""


class Publisher:
    """A client process of a system, which publishes on demand."""

    def __init__(self, variant: Variant, url: str, directory: Path) -> None:
        ledger = directory / "published"  # none of a client's own business, but the app wants one
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.apps.publisher", variant.system],
            cwd=directory,
            env={**os.environ, **variant.environment(url, ledger)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def publish(self, count: int, way: str = "delay", first: int = 0) -> dict[str, Any]:
        """Publish tasks numbered from *first* on, and return the `seconds` and the `cpu_s` that it took."""
        return self._ask({"how": "all at once", "way": way, "first": first, "count": count})

    def publish_one_at_a_time(self, count: int, ledger: Ledger) -> list[int]:
        """Publish each task when the last one has started; return when each was, in ns of the monotonic clock."""
        reply = self._ask({"how": "one at a time", "count": count, "ledger": str(ledger.path)})
        return list(reply["published_ns"])

    def publish_by_chance(self, **wanted: Any) -> dict[int, int]:
        """Publish two streams of tasks (see `apps.publisher.by_chance`); return when each was, by its number."""
        reply = self._ask({"how": "by chance", **wanted})
        return {int(number): ns for number, ns in reply["published_ns"].items()}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
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
    """A server and a directory, for as long as the measuring takes. *executable*: a server other than Valkey."""

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
        """Return the URL for a worker of *variant*, which may be that of a proxy."""
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
        """Return the client of the variant's system for a database; it stays."""
        key = variant.system, self.url(database)
        if key not in self._publishers:
            publisher = self._publishers[key] = Publisher(variant, key[1], self.directory)
            self._stack.callback(publisher.close)
        return self._publishers[key]

    @contextmanager
    def worker(self, variant: Variant, database: int = LIVE, ledger: Ledger | None = None) -> Iterator[Process]:
        """Run a worker of *variant*; it is stopped in good order."""
        with self.killed_worker(variant, database, ledger) as process:
            yield process
            process.term()
            process.wait(20)

    @contextmanager
    def killed_worker(self, variant: Variant, database: int = LIVE, ledger: Ledger | None = None) -> Iterator[Process]:
        """Run a worker of *variant*; it ends by kill -9, with its pool."""
        noted = self.ledger if ledger is None else ledger  # an empty one is false
        environment = variant.environment(self._url_of(variant, database), noted.path)
        process = Process(variant.name, variant.command(), environment, cwd=self.directory)
        try:
            yield process
        finally:
            process.end()

    def restock(self, variant: Variant, count: int, way: str = "delay") -> None:
        """Have *count* messages of the variant's system wait, as its own client published them, and nothing else.

        They are published once, and copied for every round.
        """
        key = variant.stored_as, way, count
        if key not in self._backlogs:
            database = self._backlogs[key] = len(self._backlogs) + 1
            self.publisher(replace(variant, system=variant.stored_as), database).publish(count, way)
        database = self._backlogs[key]
        self.client.flushdb()
        with self.client_of(database) as source:
            found = waiting(variant.stored_as, source)
            if found != count:
                raise BenchmarkError(f"{found} messages of {variant.stored_as} wait, not {count}")
            names = list(source.scan_iter(count=1000))
            for first in range(0, len(names), 1000):
                with source.pipeline(transaction=False) as pipe:
                    for name in names[first : first + 1000]:
                        pipe.copy(name, name, destination_db=LIVE)
                    pipe.execute()

    def wait_for_tasks(self, process: Process, count: int, ledger: Ledger | None = None, quiet_s: float = 30) -> None:
        """Wait until *count* tasks have started; fail when *quiet_s* go by without one."""
        noted = self.ledger if ledger is None else ledger

        def grown() -> bool:
            if not process.is_running:
                raise BenchmarkError(f"{process.name} ended. Its log:\n{process.log()}")
            return len(noted) > before

        before = len(noted)
        while before < count:
            limit_s = quiet_s if before else _BOOT_S
            wait_until(grown, limit_s, f"{process.name} ran {before} of {count}. Its log:\n{process.log()}")
            before = len(noted)


def say(text: str) -> None:
    """Tell how far it is, beside the results."""
    print(f"  {text}", file=sys.stderr, flush=True)


def in_turn(subjects: Sequence[S], rounds: int, measure: Callable[[S], dict[str, float]]) -> Part:
    """Measure all *subjects* one after the other, so many times: what disturbs the machine disturbs all of them.

    Each second round begins with the last one: no subject always has its turn behind the same other one.
    """
    part = Part()
    for round_ in range(1, rounds + 1):
        for subject in subjects if round_ % 2 else reversed(subjects):
            figures = measure(subject)
            part.add(subject, figures)
            shown = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
            say(f"{round_}/{rounds}  {subject.name}: {shown}")
    return part
