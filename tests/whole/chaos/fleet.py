"""The processes under test: workers with all pools, a dispatcher, publishers. Faults select them by process id."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic, sleep

import psutil

from ...support.processes import Process, WorkerProcess, session_of, start_worker, wait_until
from .ledger import Ledger

APP = "tests.whole.chaos.merged_tasks"
_READY_S = 60

#: Seconds from a worker's "ready" until its event loop runs.
_TURNS_S = 1.0

#: Share of pool process kills that should hit a process in a task, and max seconds to wait for the start of a task.
_IN_A_TASK, _STARTS_WITHIN_S = 0.7, 0.4


@dataclass(frozen=True)
class Member:
    """A worker of the fleet, regardless of its process. *retries_results*: its ``result_backend_always_retry``."""

    name: str
    pool: str
    slots: int
    types: tuple[str, ...]
    clock_offset_s: int = 0
    retries_results: bool = False


MEMBERS = (
    Member("pdf", "prefork", 2, ("pdf",), retries_results=True),
    Member("office", "prefork", 3, ("pdf", "excel"), clock_offset_s=3600),
    Member("search", "threads", 4, ("excel", "index"), retries_results=True),
    Member("post", "solo", 1, ("index", "mail")),
    Member("mail", "gevent", 3, ("mail",), clock_offset_s=-3600, retries_results=True),
    Member("sheets", "eventlet", 3, ("excel", "mail")),
    Member("versatile", "prefork", 3, ("pdf", "excel", "index", "mail")),
)
SLOTS = sum(member.slots for member in MEMBERS)


class Fleet:
    """Starts and ends the processes, and writes each kill to the ledger in advance.

    *url_of* returns the broker's URL for a client, by name.
    """

    def __init__(self, ledger: Ledger, url_of: Callable[[str], str], env: dict[str, str]) -> None:
        self._ledger, self._url_of = ledger, url_of
        self._env = {**env, "LEDGER": str(ledger.path)}
        self.workers: dict[str, WorkerProcess] = {}
        self.twins: list[WorkerProcess] = []
        self.publishers: list[Process] = []
        self.dispatcher: Process | None = None
        self._gone: list[Process] = []
        self._stopped: dict[int, WorkerProcess] = {}
        self._starts = Ledger(ledger.path)
        self._ready_at: dict[int, float] = {}
        self._batches = 0

    def start(self) -> None:
        for member in MEMBERS:
            self.workers[member.name] = self._worker(member)
        self.dispatcher = self._dispatcher()
        self.wait_ready()

    def wait_ready(self) -> None:
        for worker in self.workers.values():
            worker.wait_ready(_READY_S)

    # -- faults

    def kill_worker(self, name: str) -> None:
        """Kill a worker without its pool processes, and immediately start a new worker with its name."""
        worker = self.workers[name]
        self._kill(worker, "worker")
        self.workers[name] = self._worker(_member(name))

    def kill_pool_process(self, name: str, rng: Random) -> None:
        """Kill one pool process of a prefork worker, if it has one and its event loop runs.

        Earlier, Celery would interpret the death as a pool that cannot start, and end the worker.
        """
        worker = self.workers[name]
        is_up = " ready." in worker.log()
        if is_up and monotonic() - self._ready_at.setdefault(worker.pid, monotonic()) > _TURNS_S:
            is_killed = rng.random() < _IN_A_TASK and self._kill_in_a_task(worker, rng)
            if not is_killed:
                self._kill_child(name, rng, "pool process")

    def _kill_in_a_task(self, worker: WorkerProcess, rng: Random) -> bool:
        """Wait for the start of a task in a pool process, and kill the process during the task or shortly after it.

        Return False if no task starts in time.
        """
        list(self._starts.new())
        until = monotonic() + _STARTS_WITHIN_S
        while monotonic() < until:
            sleep(0.002)
            for event in self._starts.new():
                if event.kind in ("start", "merged") and event.facts["worker"] == str(worker.pid):
                    sleep(rng.uniform(0, 0.03))
                    self._ledger.note("kill", "pool process", target=event.pid)
                    with suppress(ProcessLookupError):
                        os.kill(event.pid, signal.SIGKILL)
                    return True
        return False

    def kill_guard(self, name: str, rng: Random) -> None:
        """Kill the guard of a worker, if it has one."""
        self._kill_child(name, rng, "guard")

    def _kill_child(self, name: str, rng: Random, what: str) -> None:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.workers[name].pid).children()
            chosen = [child for child in children if _is_guard(child) == (what == "guard")]
            if chosen:
                child = rng.choice(chosen)
                self._ledger.note("kill", what, target=child.pid)
                child.kill()

    def kill_dispatcher(self) -> None:
        assert self.dispatcher is not None, "started"
        self._kill(self.dispatcher, "dispatcher")
        self.dispatcher = self._dispatcher()

    def kill_publisher(self) -> bool:
        """Kill a running publisher. Return False if none is running."""
        for publisher in self.publishers:
            if publisher.is_running:
                self._kill(publisher, "publisher")
                return True
        return False

    def suspend(self, name: str, *, pool_too: bool) -> Callable[[], None]:
        """Suspend a worker (SIGSTOP). Return the function that resumes it."""
        worker = self.workers[name]
        children = psutil.Process(worker.pid).children() if pool_too else []
        self._ledger.note("stop", name, target=worker.pid)
        self._stopped[worker.pid] = worker
        worker.signal(signal.SIGSTOP)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.suspend()

        def go_on() -> None:
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.resume()
            if self._stopped.pop(worker.pid, None) and worker.is_running:
                worker.signal(signal.SIGCONT)
            self._ledger.note("resume", name, target=worker.pid)

        return go_on

    def block_loop(self, name: str) -> None:
        """Block the event loop of a worker, if it runs already, for `app.BLOCK_S`."""
        worker = self.workers[name]
        if " ready." not in worker.log():
            return  # without its signal handler, the worker would die
        self._ledger.note("block", name, target=worker.pid)
        worker.signal(signal.SIGUSR2)

    def restart(self, name: str) -> None:
        """Stop a worker normally, and start its successor before it has ended."""
        worker = self.workers[name]
        self._ledger.note("term", name, target=worker.pid)
        worker.term()
        self._gone.append(worker)
        self.workers[name] = self._worker(_member(name))

    def start_twin(self, name: str) -> None:
        """Start a second worker with the node name of a live one."""
        self.twins.append(self._worker(_member(name)))

    def publish(
        self,
        seed: str,
        jobs: int,
        rate: float,
        *,
        long: int = 3,
        merging: int = 0,
        stoppable: int = 0,
        clock_offset_s: int = 0,
    ) -> None:
        """Start a publisher. *long*, *merging*, *stoppable*: percentages of jobs that take about a second, of bursts of
        merging calls, and of long preemptible jobs.
        """
        self._batches += 1
        command = [sys.executable, "-m", "tests.whole.chaos.publisher"]
        command += [f"{seed}-{self._batches}", str(jobs), str(rate), str(long), str(merging), str(stoppable)]
        env = {**self._env, "BROKER_URL": self._url_of("publishers"), "CLOCK_OFFSET_S": str(clock_offset_s)}
        self.publishers.append(Process("publisher", command, env))

    # -- between storms

    def settle(self) -> list[str]:
        """End twins and the children of killed processes; wait for publishers and for new workers.

        Return the names of other processes that ended unexpectedly, and replace them.
        """
        for twin in self.twins:
            self._ledger.note("term", twin.name, target=twin.pid)
            twin.term()
        self._gone += self.twins
        self.twins = []
        for publisher in self.publishers:
            wait_until(lambda each=publisher: not each.is_running, 120, "the publisher has finished")
        ended = [name for name, worker in self.workers.items() if not worker.is_running]
        for name in ended:
            self._gone.append(self.workers[name])
            self.workers[name] = self._worker(_member(name))
        if self.dispatcher is not None and not self.dispatcher.is_running:
            ended.append(self.dispatcher.name)
            self._gone.append(self.dispatcher)
            self.dispatcher = self._dispatcher()
        self.wait_ready()
        gone, self._gone, self.publishers = (*self._gone, *self.publishers), [], []
        lingering = [words for each in gone for words in self._end(each)]
        assert not lingering, "; ".join(lingering)
        return ended

    def logs(self) -> dict[str, str]:
        return {f"{each.name}-{each.pid}": each.log() for each in self._all()}

    def end(self) -> None:
        for each in self._all():
            each.end()

    def _all(self) -> list[Process]:
        others = [self.dispatcher] if self.dispatcher else []
        return [*self.workers.values(), *self.twins, *self.publishers, *self._gone, *others]

    def _end(self, process: Process) -> list[str]:
        """End a killed or leaving process after its children have ended. Return a description of the others."""
        lingering: list[str] = []
        try:
            wait_until(lambda: not session_of(process.pid), 30, "its session has ended")
        except AssertionError:
            of_process = f"of {process.name}, {process.pid}, is there"
            lingering = [f"{_described(each)} {of_process}" for each in session_of(process.pid)]
        if process.name != "publisher":
            self._ledger.path.with_name(f"{process.name}-{process.pid}-ended.log").write_text(process.log())
        process.end()
        return lingering

    def _kill(self, process: Process, what: str) -> None:
        self._ledger.note("kill", what, target=process.pid)
        process.kill()
        self._gone.append(process)

    def _worker(self, member: Member) -> WorkerProcess:
        env = {**self._env, "CLOCK_OFFSET_S": str(member.clock_offset_s)}
        env["RETRIES_RESULTS"] = str(int(member.retries_results))
        options = {"concurrency": member.slots, "pool": member.pool, "name": member.name}
        extra = ["--loglevel", "WARNING", "-E"]
        worker = start_worker(APP, self._url_of(member.name), member.types, env=env, extra=extra, **options)
        self._ledger.note("born", member.name, target=worker.pid, retries_results=member.retries_results)
        return worker

    def _dispatcher(self) -> Process:
        env = {**self._env, "BROKER_URL": self._url_of("dispatcher")}
        command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "dispatcher"]
        return Process("dispatcher", command, env)


def _is_guard(process: psutil.Process) -> bool:
    return "guard of" in " ".join(process.cmdline())


def _member(name: str) -> Member:
    return next(member for member in MEMBERS if member.name == name)


def _described(pid: int) -> str:
    """Describe a process that should have ended."""
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        waits_in = Path("/proc", str(pid), "wchan").read_text()
        words = " ".join(process.cmdline())
        return f"{pid} ({words}), child of {process.ppid()}, {process.status()} in {waits_in}"
    return str(pid)
