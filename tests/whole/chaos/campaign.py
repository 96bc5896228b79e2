"""A campaign: a fleet on its servers, storm after storm, each judged when all is quiet."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic, sleep

from . import remains
from .book import RESULTS, Book
from .faults import Field
from .fleet import MEMBERS, SLOTS, Fleet
from .judge import Verdict, judge
from .ledger import Ledger
from .operator import Operator
from .proxy import Proxy
from .servers import DurableServer, ReplicatedServers
from .storms import Storm

#: Longest time, s, after a storm in which nothing is noted although not all is quiet. A slow machine takes its time.
_STANDS_STILL_S = 90


@dataclass
class Outcome:
    """A storm, its strikes, and its outcome."""

    storm: str
    seconds: float
    quiet_after_s: float
    kills: dict[str, int]
    faults: dict[str, int]
    verdict: Verdict = field(default_factory=Verdict)


def until_quiet(why_not: Callable[[], str], noted: Callable[[], int], still_s: float = _STANDS_STILL_S) -> str:
    """Wait until *why_not* says "", as long as ever more is *noted*. Return what it says in the end.

    What is judged while jobs still run is wrong: a job may end between the look at the ledger and that at Redis.
    """
    known, since = noted(), monotonic()
    while (trouble := why_not()) and monotonic() < since + still_s:
        sleep(0.1)
        if (now := noted()) != known:
            known, since = now, monotonic()
    return trouble


class Campaign:
    """One fleet and its servers; *replicated* or not. *seed*: of everything that is left to chance."""

    def __init__(self, directory: Path, seed: str, *, replicated: bool) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self.directory = directory
        self._rng = Random(seed)
        self._seed = seed
        self.ledger = Ledger(directory / "ledger")
        self.book = Book()
        self._replicated = replicated
        self._field: Field

    @contextmanager
    def running(self) -> Iterator["Campaign"]:
        """Start everything; end it in any case, and leave the logs in the directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            results = DurableServer(self.directory / "results", self.ledger, RESULTS)
            stack.callback(results.stop)
            env = {"RESULT_URL": results.url}
            proxy = None
            if self._replicated:
                server = ReplicatedServers(self.directory, self.ledger)
                env["MASTER_NAME"] = "main"
                fleet = Fleet(self.ledger, lambda name: server.url, env)
            else:
                server = DurableServer(self.directory / "server", self.ledger)
                proxy = Proxy(server.port)
                stack.callback(proxy.close)
                fleet = Fleet(self.ledger, proxy.url, env)
            stack.callback(server.stop)
            stack.callback(fleet.end)
            stack.callback(self._keep_logs, fleet)
            self._field = Field(self._rng, self.ledger, fleet, server, results, proxy, Operator(self.ledger, server))
            fleet.start()
            yield self

    def storm(self, storm: Storm, seconds: float, jobs: int) -> Outcome:
        """Publish so many jobs while *storm* blows for so long; judge what came of it."""
        on = self._field
        kills, faults = self.book.kills.copy(), self.book.faults.copy()
        self.ledger.note("whole", "fleet")
        offsets = self._rng.choice(((0, 0), (3600, 0), (0, -3600)))
        began = monotonic()
        for number, offset in enumerate(offsets):
            # Publishers are done before the storm is: the last messages go through the storm as well.
            on.fleet.publish(
                f"{self._seed}-{number}",
                jobs // 2,
                jobs / 2 / (0.8 * seconds),
                long=storm.long,
                merging=storm.merging,
                stoppable=storm.stoppable,
                clock_offset_s=offset,
            )
        on.wait(1)
        troubles = []
        try:
            while monotonic() - began < seconds:
                self._rng.choice(storm.faults)(on)
                on.wait(self._rng.uniform(*storm.pause_s))
            on.heal()
            on.operator.calm()
        except AssertionError as exc:  # a fault waited in vain
            troubles.append(str(exc))
        blown = monotonic()
        suspended = remains.suspend_recurring(on.server.client)
        troubles += self._wait_until_quiet()
        quiet = monotonic()
        self.book.read(self.ledger.new())
        verdict = judge(self.book, remains.look(on.server.client, on.results.client, SLOTS))
        remains.resume_recurring(on.server.client, suspended)
        verdict.violations += troubles
        verdict.violations += self._strange_words()
        for server in (on.server, on.results):
            if isinstance(server, DurableServer):
                server.compact()
        return Outcome(
            storm.name,
            round(blown - began, 1),
            round(quiet - blown, 1),
            dict(self.book.kills - kills),
            dict(self.book.faults - faults),
            verdict,
        )

    def _wait_until_quiet(self) -> list[str]:
        """Return the troubles on the way to quiet, and the reasons why a fleet is not quiet in the end."""
        fleet, server, found = self._field.fleet, self._field.server, []
        try:
            found += [f"{name} ended by itself" for name in fleet.settle()]
        except AssertionError as exc:  # the wait was in vain
            found.append(str(exc))
        trouble = until_quiet(lambda: remains.why_not_quiet(server.client, len(MEMBERS)), self.ledger.size)
        return [*found, f"nothing happens, but not all is quiet: {trouble}"] if trouble else found

    def _strange_words(self) -> list[str]:
        """Return lines of the logs that no fault should bring about."""
        found = []
        for name, log in self._field.fleet.logs().items():
            found += [f"{name}: {line}" for line in log.splitlines() if ": a call failed; the next one is in" in line]
        return found

    def _keep_logs(self, fleet: Fleet) -> None:
        for name, log in fleet.logs().items():
            (self.directory / f"{name}.log").write_text(log)
