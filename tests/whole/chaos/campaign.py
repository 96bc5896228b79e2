"""A campaign: a fleet on its servers, with storm after storm, each checked when the fleet is quiet."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic, sleep

from . import remains
from .checker import Verdict, check
from .faults import Field
from .fleet import MEMBERS, SLOTS, Fleet
from .history import RESULTS, History
from .ledger import Ledger
from .operator import Operator
from .proxy import Proxy
from .servers import DurableServer, ReplicatedServers
from .storms import Storm

#: Max seconds without an event after a storm while the fleet is not quiet. It allows for a slow machine.
_STANDS_STILL_S = 90


@dataclass
class Outcome:
    """A storm, its faults, and its verdict."""

    storm: str
    seconds: float
    quiet_after_s: float
    kills: dict[str, int]
    faults: dict[str, int]
    verdict: Verdict = field(default_factory=Verdict)


def until_quiet(why_not: Callable[[], str], noted: Callable[[], int], still_s: float = _STANDS_STILL_S) -> str:
    """Wait until *why_not* returns "", as long as *noted* grows within *still_s*. Return the last reason.

    A check while jobs still run would be wrong: a job may end between the reads of the ledger and of Redis.
    """
    size, since = noted(), monotonic()
    while (trouble := why_not()) and monotonic() < since + still_s:
        sleep(0.1)
        if (now := noted()) != size:
            size, since = now, monotonic()
    return trouble


class Campaign:
    """One fleet and its servers, *replicated* or not. *seed*: of all random choices."""

    def __init__(self, directory: Path, seed: str, *, replicated: bool) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self.directory = directory
        self._rng = Random(seed)
        self._seed = seed
        self.ledger = Ledger(directory / "ledger")
        self.history = History()
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
        """Publish *jobs* jobs while *storm* runs for *seconds*; check the result."""
        on = self._field
        kills, faults = self.history.kills.copy(), self.history.faults.copy()
        self.ledger.note("whole", "fleet")
        offsets = self._rng.choice(((0, 0), (3600, 0), (0, -3600)))
        began = monotonic()
        for number, offset in enumerate(offsets):
            # Publishers finish before the storm, so the last messages meet faults as well.
            shares = {"long": storm.long, "merging": storm.merging, "stoppable": storm.stoppable}
            rate = jobs / 2 / (0.8 * seconds)
            on.fleet.publish(f"{self._seed}-{number}", jobs // 2, rate, **shares, clock_offset_s=offset)
        on.wait(1)
        troubles = []
        try:
            while monotonic() - began < seconds:
                self._rng.choice(storm.faults)(on)
                on.wait(self._rng.uniform(*storm.pause_s))
            on.heal()
            on.operator.calm()
        except AssertionError as exc:  # a fault timed out
            troubles.append(str(exc))
        blown = monotonic()
        suspended = remains.suspend_recurring(on.server.client)
        troubles += self._wait_until_quiet()
        quiet = monotonic()
        self.history.read(self.ledger.new())
        verdict = check(self.history, remains.look(on.server.client, on.results.client, SLOTS))
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
            dict(self.history.kills - kills),
            dict(self.history.faults - faults),
            verdict,
        )

    def _wait_until_quiet(self) -> list[str]:
        """Return the problems until the fleet is quiet, and the reasons if it does not become quiet."""
        fleet, server, problems = self._field.fleet, self._field.server, []
        try:
            problems += [f"{name} ended by itself" for name in fleet.settle()]
        except AssertionError as exc:  # a wait timed out
            problems.append(str(exc))
        trouble = until_quiet(lambda: remains.why_not_quiet(server.client, len(MEMBERS)), self.ledger.size)
        return [*problems, f"nothing happens, but not all is quiet: {trouble}"] if trouble else problems

    def _strange_words(self) -> list[str]:
        """Return log lines that no fault should cause."""
        lines = ((name, line) for name, log in self._field.fleet.logs().items() for line in log.splitlines())
        return [f"{name}: {line}" for name, line in lines if ": a call failed; the next one is in" in line]

    def _keep_logs(self, fleet: Fleet) -> None:
        for name, log in fleet.logs().items():
            (self.directory / f"{name}.log").write_text(log)
