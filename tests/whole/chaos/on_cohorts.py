"""``python -m tests.whole.chaos --cohorts`` injects faults into two cohorts on two servers, some workers in both.

The ledger is stored outside the servers. Every accepted job must end, and may run again only if its worker was killed.
No worker may have more runs than slots. A cohort must continue while the other cohort's server is down.
"""

import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import redis

from celery_affinity.schema.keys import Keys
from celery_affinity.settings.cohorts import DEFAULT

from ...support.processes import WorkerProcess, start_worker, wait_until
from . import remains
from .cohorts_app import BEGINNING, OTHER, WORKER_TIMEOUT_S, app_of
from .cohorts_checker import Runs, check
from .ledger import Ledger
from .on_cluster import MAX_STANDSTILL_S, Report
from .servers import DurableServer

APP = "tests.whole.chaos.cohorts_app"

#: Types of each cohort.
TYPES = {DEFAULT: "pdf", OTHER: f"{BEGINNING}pdf"}

#: Workers: pool, slots, cohorts.
MEMBERS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "home": ("prefork", 2, (DEFAULT,)),
    "abroad": ("prefork", 2, (OTHER,)),
    "both": ("prefork", 3, (DEFAULT, OTHER)),
    "threads": ("threads", 4, (DEFAULT, OTHER)),
    "green": ("gevent", 3, (DEFAULT, OTHER)),
}

#: Number of a cohort's jobs that must start after a fault: more than the workers hold.
_BEGUN = 20

_PATIENCE_S = 60.0


class Calls:
    """Publishes calls to one cohort from a separate thread, until `end`."""

    def __init__(self, app: object, ledger: Ledger, cohort: str, chance: Random) -> None:
        self._app, self._ledger, self._cohort, self._chance = app, ledger, cohort, chance
        self.pause_s = 0.05
        self.failed: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        number = 0
        while not self._over.wait(self.pause_s):
            number += 1
            try:
                self._send_one(f"{self._cohort}-{number}")
            except Exception as exc:
                self.failed.append(f"a publish to {self._cohort} failed: {exc!r}")

    def _send_one(self, job: str) -> None:
        chance = self._chance
        again = chance.random() < 0.1
        names = [f"{job}.0", *([f"{job}.1"] if again else [])]
        options: dict[str, object] = {"countdown": chance.uniform(0.1, 2)} if chance.random() < 0.1 else {}
        if chance.random() < 0.1:
            options["exclusive"] = f"{self._cohort}-{chance.randrange(3)}"
        for name in names:
            self._ledger.note("sent", name)
        seconds = chance.choice((0.0, 0.01, 0.05, 0.2))
        self._app.send_task(f"{APP}.work", (job, seconds, again), queue=TYPES[self._cohort], **options)  # type: ignore[attr-defined]
        for name in names:
            self._ledger.note("accepted", name)

    def end(self) -> None:
        self._over.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            self.failed.append(f"a publish to {self._cohort} does not return")


class Storm:
    """Random faults under continuous load, which is alternately higher in one of the cohorts."""

    def __init__(self, directory: Path, seed: str, stack: ExitStack) -> None:
        self._chance = Random(seed)
        self.ledger = Ledger(directory / "ledger")
        self._history, self._events = Runs(), Ledger(directory / "ledger")
        self.servers = {
            DEFAULT: DurableServer(directory / "home", self.ledger, "server"),
            OTHER: DurableServer(directory / "other", self.ledger, OTHER),
        }
        for server in self.servers.values():
            stack.callback(server.stop)
        self.workers: dict[str, WorkerProcess] = {}
        self._gone: list[WorkerProcess] = []
        stack.callback(lambda: [worker.end() for worker in (*self.workers.values(), *self._gone)])
        stack.callback(self._keep_logs, directory)
        for name in MEMBERS:
            self._start(name)
        app = app_of(self.servers[DEFAULT].url, self.servers[OTHER].url)
        stack.callback(app.close)
        self._calls = {cohort: Calls(app, self.ledger, cohort, Random(f"{seed}-{cohort}")) for cohort in TYPES}
        self.report = Report(of="cohorts")

    def _start(self, name: str) -> None:
        pool, slots, cohorts = MEMBERS[name]
        env = {"LEDGER": str(self.ledger.path), "OTHER_URL": self.servers[OTHER].url}
        types = [TYPES[cohort] for cohort in cohorts]
        worker = start_worker(APP, self.servers[DEFAULT].url, types, pool=pool, concurrency=slots, name=name, env=env)
        self.ledger.note("born", name, target=worker.pid, slots=slots)
        self.workers[name] = worker

    def blow(self, seconds: float) -> Report:
        faults = [self.worker_killed, self.other_killed, self.server_killed]
        faults += [self.connections_cut, self.functions_flushed]
        self._go_on(*TYPES)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            busy = self._chance.choice([*TYPES])
            for cohort, calls in self._calls.items():
                calls.pause_s = 0.02 if cohort == busy else 0.1
            names = []
            for fault in self._chance.sample(faults, self._chance.choice([1, 1, 2])):
                names.append(fault.__name__.replace("_", " "))
                fault()
            self.report.faults.update(names)
            self._note(" and ".join(names), self._go_on(*TYPES))
        self._end()
        return self.report

    # -- faults

    def worker_killed(self) -> None:
        name = self._chance.choice([*MEMBERS])
        worker = self.workers[name]
        self.ledger.note("kill", "worker", target=worker.pid)
        worker.kill()
        self._gone.append(worker)
        self._start(name)

    def other_killed(self) -> None:
        """Kill the server of one cohort, sometimes past the worker timeout; the other cohort must continue."""
        self.servers[OTHER].kill()
        try:
            self._note("other away", self._go_on(DEFAULT))
            time.sleep(self._chance.choice((0.0, 1.0, WORKER_TIMEOUT_S + 1)))
            self._note("other still away", self._go_on(DEFAULT))
        finally:
            self.servers[OTHER].start()

    def server_killed(self) -> None:
        """Kill the server of `broker_url`, which all workers use."""
        self.servers[DEFAULT].kill()
        time.sleep(self._chance.choice((0.0, 1.5, WORKER_TIMEOUT_S + 1)))
        self.servers[DEFAULT].start()

    def connections_cut(self) -> None:
        for server in self._chance.choice([[*self.servers.values()], [self.servers[OTHER]]]):
            for kind in ("normal", "pubsub"):
                server.client.client_kill_filter(_type=kind, skipme=True)

    def functions_flushed(self) -> None:
        for server in self.servers.values():
            with suppress(redis.RedisError):
                server.client.function_flush()

    # -- checks

    def _note(self, what: str, standstill_s: float) -> None:
        self.report.standstill_s = max(self.report.standstill_s, standstill_s)
        print(f"{time.strftime('%X')} {what}: {standstill_s:.1f} s", flush=True)
        if standstill_s > MAX_STANDSTILL_S:
            self.report.standstills.append(f"some cohort stood still for {standstill_s:.1f} s after {what}")

    def _go_on(self, *cohorts: str) -> float:
        """Return the seconds until each of *cohorts* has started more jobs than workers hold, once workers are up."""
        for name, worker in self.workers.items():
            if set(cohorts) & set(MEMBERS[name][2]):
                worker.wait_ready(_PATIENCE_S)
        since = time.monotonic()

        def all_begin() -> bool:
            self._history.read(self._events.new())
            begun = [run.job.partition("-")[0] for run in self._history.runs.values() if run.start > since]
            return all(begun.count(cohort) >= _BEGUN for cohort in cohorts)

        wait_until(all_begin, _PATIENCE_S, f"each cohort begins jobs\n{self._logs()}")
        return time.monotonic() - since

    def _end(self) -> None:
        for calls in self._calls.values():
            calls.end()
            self.report.violations += calls.failed
        for name, worker in self.workers.items():
            if not worker.is_running:
                self.report.violations.append(f"{name} ended by itself")
        try:
            wait_until(self._is_all_done, _PATIENCE_S, "every job ends")
            for cohort in self.servers.items():
                wait_until(lambda cohort=cohort: not self._why_not_quiet(*cohort), 30, f"{cohort[0]} is quiet")
        except AssertionError as exc:
            self.report.violations.append(str(exc))
            self.report.violations += [self._why_not_quiet(*each) for each in self.servers.items()]
        self._history.read(self._events.new())
        self.report.violations += check(self._history)
        self.report.violations += self._leaks()
        self.report.jobs = len(self._history.accepted)
        self.report.again = len(self._history.runs) - len(self._history.of_job())

    def _is_all_done(self) -> bool:
        self._history.read(self._events.new())
        return self._history.accepted <= self._history.ended

    def _why_not_quiet(self, cohort: str, server: DurableServer) -> str:
        workers = sum(cohort in cohorts for _, _, cohorts in MEMBERS.values())
        return remains.why_not_quiet(server.client, workers, Keys(cohort=cohort))

    def _leaks(self) -> list[str]:
        """Return the violations in Redis of a quiet fleet."""
        leaks, slots = [], 0
        for cohort, server in self.servers.items():
            contents = remains.look(server.client, server.client, None, Keys(cohort=cohort))
            leaks += [f"{cohort}: {each}" for each in contents.leaks]
            leaks += [f"{cohort}: {job} is dead: {why}" for job, why in contents.reasons.items()]
            slots += sum(map(int, server.client.hvals(Keys(cohort=cohort).key("free_slots"))))
        expected = sum(slots for _, slots, _ in MEMBERS.values())
        return leaks if slots == expected else [*leaks, f"{slots} free slots in all cohorts instead of {expected}"]

    def _logs(self) -> str:
        return "\n".join(f"---- {name}\n{worker.log()[-6000:]}" for name, worker in self.workers.items())

    def _keep_logs(self, directory: Path) -> None:
        for worker in (*self.workers.values(), *self._gone):
            (directory / f"{worker.name}-{worker.pid}.log").write_text(worker.log())


def blow(seconds: float, seed: str, directory: Path) -> Report:
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        return Storm(directory, seed, stack).blow(seconds)
