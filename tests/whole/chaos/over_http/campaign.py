"""The fleet: workers of both kinds, two web processes, a server with an append-only file, and a publisher."""

import random
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import monotonic, sleep

from celery import chord
from celery.result import AsyncResult

from celery_affinity.embedded.server import HeldPort

from ....support.processes import ROOT, Process, session_of, start_worker, wait_until
from .. import remains
from ..ledger import Ledger
from ..servers import DurableServer
from . import app as tasks
from .checker import Verdict, check, read

#: Max seconds from the end of a storm until the fleet is quiet: a dead process may hold a chord for 40 s.
_QUIET_WITHIN_S = 5 * tasks.WORKER_TIMEOUT_S

_ROOM = "tests.whole.chaos.over_http"


@dataclass
class Place:
    """A process that is restarted whenever it has ended. *what*: its name in the ledger."""

    what: str
    start: Callable[[], Process]
    process: Process | None = None


class Campaign:
    """A fleet with both kinds of workers. *seed*: of the campaign's random choices; workers use their own."""

    def __init__(self, directory: Path, seed: str) -> None:
        self._rng = random.Random(seed)
        self._directory = directory
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self._ledger = Ledger(directory / "ledger")
        self._numbers = count(1)
        self._results: dict[str, AsyncResult] = {}
        self._sums: dict[str, int] = {}
        self._places: list[Place] = []
        self._gone: list[Process] = []

    @contextmanager
    def running(self) -> Iterator["Campaign"]:
        """Start everything; end it in any case, and leave the logs in the directory."""
        self._server = DurableServer(self._directory / "server", self._ledger)
        try:
            self._app = tasks.make(self._server.url)
            self._app.set_current()
            self._ports = [HeldPort() for _ in range(2)]
            self._places = [*self._webs(), *self._celery_workers(), *self._workers_over_http()]
            self._fill_places()
            wait_until(
                lambda: not remains.why_not_quiet(self._server.client, self._size), 60, "all workers have joined"
            )
            yield self
        finally:
            for each in (*(place.process for place in self._places if place.process), *self._gone):
                (self._directory / f"{each.name}-{each.pid}.log").write_text(each.log())
                each.end()
            self._server.stop()

    def storm(self, seconds: float, rate: float) -> Verdict:
        """Publish and kill for *seconds*, wait until the fleet is quiet, and check the ledger."""
        until, next_kill = monotonic() + seconds, monotonic() + 1
        while monotonic() < until:
            self._publish()
            self._fill_places()
            if monotonic() > next_kill:
                self._strike()
                next_kill = monotonic() + self._rng.uniform(0.3, 1.2)
            sleep(self._rng.uniform(0, 2 / rate))
        why = self._settle()
        results = {token: _value(result, token) for token, result in self._results.items()}
        verdict = check(read(self._ledger.new()), results, self._sums)
        verdict.violations += why
        return verdict

    # -- processes

    @property
    def _size(self) -> int:
        return sum(place.what != "web" for place in self._places)

    def _webs(self) -> list[Place]:
        words = [sys.executable, "-m", "celery", "-A", f"{_ROOM}.app", "affinity", "web", "--port"]
        return [
            Place("web", lambda port=port: self._process("web", [*words, str(port.number)])) for port in self._ports
        ]

    def _celery_workers(self) -> list[Place]:
        def start(pool: str) -> Callable[[], Process]:
            env = {"LEDGER": str(self._ledger.path)}
            return lambda: start_worker(
                f"{_ROOM}.app", self._server.url, [tasks.TYPE], concurrency=2, pool=pool, name=pool, env=env
            )

        return [Place("worker", start(pool)) for pool in ("prefork", "threads")]

    def _workers_over_http(self) -> list[Place]:
        ports = [str(port.number) for port in self._ports]
        words = [sys.executable, "-m", f"{_ROOM}.worker"]
        found = [
            Place("worker over HTTP", lambda name=name: self._process(name, [*words, name, "2", *ports]))
            for name in ("http-1", "http-2", "http-3")
        ]
        if node := shutil.which("node"):
            program = str(Path(__file__).with_name("node.mjs"))
            found.append(Place("worker in Node", lambda: self._process("node", [node, program, ports[0]])))
        if shutil.which("curl"):
            worker = [str(ROOT / "examples" / "http_worker" / "worker.sh"), "page"]
            shell = shlex.join([*worker, sys.executable, "-m", f"{_ROOM}.program"])
            line = f"export WORKER=$$ URL=http://127.0.0.1:{ports[1]} TOKEN=; exec {shell}"
            found.append(Place("worker in shell", lambda: self._process("shell", ["sh", "-c", line])))
        return found

    def _process(self, name: str, words: list[str]) -> Process:
        return Process(name, words, {"BROKER_URL": self._server.url, "LEDGER": str(self._ledger.path)})

    def _fill_places(self) -> None:
        for place in self._places:
            if place.process is None or not place.process.is_running:
                if place.process is not None:
                    self._gone.append(place.process)
                place.process = place.start()

    # -- faults

    def _strike(self) -> None:
        if self._rng.random() < 0.06:
            self._server.kill()
            sleep(self._rng.choice((0, 0.5)))
            self._server.start()
            return
        others = ["worker in Node", "worker in shell"]
        what = self._rng.choice(["web", "web", "worker", "worker over HTTP", "worker over HTTP", *others])
        chosen = [place.process for place in self._places if place.what == what]
        process = self._rng.choice(chosen) if chosen else None
        if process is not None and process.is_running:
            self._ledger.note("kill", what, target=process.pid)
            process.kill()

    # -- jobs

    def _publish(self) -> None:
        """Publish a job, or a chord, whose parts and body run on either kind of worker."""
        tokens = [f"job-{next(self._numbers)}" for _ in range(self._rng.choice((1, 1, 1, 1, 1, 1, 1, 1, 1, 4)))]
        for token in tokens:
            self._ledger.note("intended", token)
        if len(tokens) == 1:
            self._call(tokens, lambda: {tokens[0]: self._part(tokens[0], tokens[0]).apply_async()})
            return
        body, *parts = tokens
        self._sums[body] = 0
        for number, token in enumerate(parts):
            self._sums[token] = number
            self._sums[body] += number

        def publish() -> dict[str, AsyncResult]:
            result = chord([self._part(token, self._sums[token]) for token in parts])(
                tasks.total.s(body).set(**tasks.BODY)
            )
            return {body: result, **dict(zip(parts, result.parent.results, strict=True))}

        self._call(tokens, publish)

    def _part(self, token: str, number: object):
        return tasks.part.s(token, number, self._rng.choice((0, 0.01, 0.05, 0.2, 0.5)))

    def _call(self, tokens: list[str], publish: Callable[[], dict[str, AsyncResult]]) -> None:
        try:
            self._results |= publish()
        except Exception as exc:  # the server is down, and may or may not have the job
            self._ledger.note("refused", tokens[0], error=type(exc).__name__)
            return
        for token in tokens:
            self._ledger.note("accepted", token)

    # -- the end

    def _settle(self) -> list[str]:
        """Wait until the fleet is quiet; return the reasons if it does not become quiet."""
        until = monotonic() + _QUIET_WITHIN_S
        while True:
            self._fill_places()
            why = remains.why_not_quiet(self._server.client, self._size)
            if not why or monotonic() > until:
                break
            sleep(0.1)
        lingering = [f"{each.name}, {each.pid}, has children" for each in self._gone if session_of(each.pid)]
        return [f"not quiet: {why}", *lingering] if why else lingering


def _value(result: AsyncResult, token: str) -> object:
    return result.result if result.state == "SUCCESS" else f"{result.state}: {result.result!r}"
