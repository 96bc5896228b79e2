"""The worker's process as its guard sees it: alive, suspended, standing still or gone; and a dead worker's forks.

The guard's program, which sends heartbeats for the worker that started it, and reports that worker's death.

`guard` runs the program in an interpreter of its own, with the standard library and the modules imported here alone.
Lines of JSON on the standard input bring a whole `Charge` first, then each `GuardNews`: arguments and environment would
show server and password to other users.

The main thread watches the worker and the pipe. The heartbeats have a thread of their own: a server that does not
answer must not keep a death from being noticed.
"""

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypedDict

from .pulse import STALLED_AFTER_S, PulseReader
from .redis_client import Address, GuardConnection, ServerError

#: Longest wait, s, for `ps`: the thread that waits is the one that sends heartbeats.
_PS_ANSWERS_WITHIN_S = 2.0


class GuardedProcess:
    """The guard's parent process, in the session *session*.

    *pulse*: the descriptor of the parent's `Pulse`. *kin*: both descriptors of the parent's `Kin`, the read end first.
    """

    def __init__(self, pid: int, session: int, pulse: int, kin: tuple[int, int]) -> None:
        self.pid = pid
        self._session = session
        self._kin_read, self._kin_write = kin
        self._mark = os.fstat(self._kin_read)
        self._pulse = PulseReader(pulse)
        self.handle = _handle(pid)
        self._sees_marks = self._has_mark(pid)  # if so, the marks of the parent's forks can be read too

    @property
    def is_gone(self) -> bool:
        # The pid may belong to another process by now, but the guard's parent changes only when the worker ends.
        return os.getppid() != self.pid

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger suspended the process."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as stat:
                state = stat.read().rpartition(b")")[2].split()[0]
        except OSError:
            if self.loop_runs:
                return False
            state = _state_by_ps(self.pid)
        return state[:1] in (b"T", b"t")

    @property
    def loop_runs(self) -> bool:
        """Whether the worker's event loop runs."""
        return time.monotonic() - self.ran_at_s <= STALLED_AFTER_S

    @property
    def ran_at_s(self) -> float:
        return self._pulse.ran_at_s

    # -- what the worker leaves behind

    def end_children(self, until_s: float) -> bool:
        """End the processes that the worker forked. Return True once all are gone, False at *until_s* (monotonic)."""
        while True:
            children = self._children()
            for child in children:
                _kill(child, self._has_mark)
            if self._nobody_holds_the_mark() or (self._sees_marks and not children):
                return True
            if time.monotonic() > until_s:
                return False
            time.sleep(0.02)

    def _children(self) -> list[int]:
        """Return the pids of the worker's forks, and of the forks of these, except those in a session of their own."""
        try:
            found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            return []
        return [pid for pid in found if self._has_mark(pid) and _session(pid) == self._session]

    def _has_mark(self, pid: int) -> bool:
        try:
            found = os.stat(f"/proc/{pid}/fd/{self._kin_write}")
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self._mark.st_dev, self._mark.st_ino)

    def _nobody_holds_the_mark(self) -> bool:
        return bool(select.select([self._kin_read], [], [], 0)[0])  # end of file: no process holds the write end


def _handle(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended; None on systems without pidfd."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _state_by_ps(pid: int) -> bytes:
    import subprocess  # not at the top: only systems without /proc need it

    command = ["ps", "-o", "state=", "-p", str(pid)]
    try:
        found = subprocess.run(command, capture_output=True, check=False, timeout=_PS_ANSWERS_WITHIN_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        return b""
    return found.stdout.strip()


def _kill(pid: int, is_the_one: Callable[[int], bool]) -> None:
    """Send SIGKILL to *pid* if *is_the_one*: asked only when the handle keeps the pid from naming another process."""
    handle = _handle(pid)
    try:
        if is_the_one(pid):
            if handle is None:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        pass  # the process is gone, or belongs to another user by now
    finally:
        if handle is not None:
            os.close(handle)


#: Pause, s, before the guard looks again at a worker that stands still or is stopped; and first pause, s, before
#: another call to a server that did not answer.
_LOOK_AGAIN_S = 0.25

#: Pause, s, between two looks for the parent, on systems where a process cannot be waited for.
_LOOK_FOR_PARENT_S = 0.25

#: Longest wait, s, of a heartbeat, and of the report of a death, for a connection or a reply.
_BEAT_TIMEOUT_S = 2.0
_REPORT_TIMEOUT_S = 1.0

#: Longest time, s, that the guard outlives its worker; and the part of it for ending the pool's processes.
_OUTLIVES_S = 1.0
_KILL_S = 0.6

#: The file of the worker's ``--logfile``, if it has one.
_log_file: str | None = None


class GuardedWorker(TypedDict):
    """The facts that a guard must know of its worker.

    *worker*: the id; *name*: the node name; *interval_s*: the time between two heartbeats. *pulse*: the descriptor of
    the `Pulse`; *kin*: both descriptors of the `Kin`. *ends_children*: whether the pool's processes are the worker's
    forks. *parent*, *session*: process id and session id of the worker. *arrows*: for each arrow that the guard calls
    the command, to which arguments are added. *loads*: the command that loads these arrows. *log_file*: of the worker.
    """

    worker: str
    name: str
    interval_s: float
    pulse: int
    kin: tuple[int, int]
    ends_children: bool
    parent: int
    session: int
    server: Address
    arrows: dict[str, list[str]]
    loads: list[str]
    log_file: str | None


class GuardUpdate(TypedDict, total=False):
    """News for a guard: another server, or that the worker leaves in good order."""

    server: Address
    leave: bool


class GuardFunctions:
    """The arrows that a guard calls. Each raises OSError or ServerError, and may be repeated."""

    def __init__(self, charge: GuardedWorker, timeout_s: float) -> None:
        self._charge = charge
        self._timeout_s = timeout_s
        self._connection: GuardConnection | None = None
        self._server: Address | None = None

    def heartbeat(self, loop_runs: bool) -> None:
        """Say that the worker lives, and whether its event loop runs."""
        again = True
        while again:
            _, again, unfilled = _parts(self._run("heartbeat", self._charge["worker"], int(loop_runs)), 3)
            self._go_on(unfilled)

    def recover(self) -> int:
        """Say that the worker is dead. Return the number of jobs that are taken from it: pending again, or lost."""
        recovered, again = 0, True
        while again:
            again, count, unfilled = _parts(self._run("recover", self._charge["worker"]), 3)
            recovered += count
            self._go_on(unfilled)
        return recovered

    def _go_on(self, unfilled: bytes) -> None:
        """Claim jobs for the types that an arrow left over, as `Scheduler` does."""
        while types := unfilled.split():
            (unfilled,) = _parts(self._run("claim", *types), 1)

    def _run(self, name: str, *arguments: object) -> object:
        command = [*self._charge["arrows"][name], *arguments]
        try:
            return self._call(*command)
        except ServerError as exc:
            if not _is_missing(exc):
                raise
        try:
            self._call(*self._charge["loads"])
        except ServerError as exc:
            if not _is_there(exc):
                raise
        return self._call(*command)

    def _call(self, *words: object) -> object:
        """Call the server. After any error but a lost library, the next call opens a new connection."""
        if self._connection is None or self._server is not self._charge["server"]:
            self.close()
            self._server = self._charge["server"]
            self._connection = GuardConnection(self._server, self._timeout_s)
        try:
            return self._connection.call(*words)
        except (OSError, ServerError) as exc:
            if not (_is_missing(exc) or _is_there(exc)):
                self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _is_missing(exc: Exception) -> bool:
    return isinstance(exc, ServerError) and ("Function not found" in str(exc) or str(exc).startswith("NOSCRIPT"))


def _is_there(exc: Exception) -> bool:
    """Return whether somebody else has loaded the library meanwhile."""
    return isinstance(exc, ServerError) and "already exists" in str(exc)


def _parts(reply: object, number: int) -> list[Any]:
    """Return the *number* parts of an arrow's reply, the last one a text. Raises ConnectionError for other replies."""
    if isinstance(reply, list) and len(reply) == number and isinstance(reply[-1], bytes):
        return reply
    raise ConnectionError(f"the server gave a reply that is none of an arrow's: {reply!r:.200}")


class ParentWatch:
    """Watch over the worker of *charge*."""

    def __init__(self, charge: GuardedWorker) -> None:
        self._charge = charge
        self._worker = GuardedProcess(charge["parent"], charge["session"], charge["pulse"], charge["kin"])

    def run(self, changes: Iterable[GuardUpdate], more: Callable[[], list[GuardUpdate] | None]) -> None:
        """Guard until the worker leaves or dies.

        *changes* came with the charge. *more* returns further changes, None when the worker can send no more.
        """
        if not self._goes_on_after(changes):
            return
        threading.Thread(target=self._heartbeat_or_end, daemon=True).start()
        handle = self._worker.handle
        watched = [0] if handle is None else [0, handle]
        while not self._worker.is_gone:
            ready = select.select(watched, [], [], _LOOK_FOR_PARENT_S if handle is None else None)[0]
            if 0 in ready:
                further = more()
                if further is None:
                    break
                if not self._goes_on_after(further):
                    return
            if handle in ready:
                break
        self._report()

    def _goes_on_after(self, changes: Iterable[GuardUpdate]) -> bool:
        """Adopt *changes*. Return False if the worker leaves."""
        for change in changes:
            if "leave" in change:
                return False
            self._charge["server"] = change["server"]
        return True

    def _report(self) -> None:
        until_s = time.monotonic() + _OUTLIVES_S
        name = f"{self._charge['name']} (pid {self._worker.pid})"
        if self._charge["ends_children"] and not self._worker.end_children(time.monotonic() + _KILL_S):
            _say("%s died, but its pool processes did not end: its jobs come back after affinity_worker_timeout", name)
            return
        told = threading.Event()
        threading.Thread(target=self._tell, args=(name, told), daemon=True).start()
        if not told.wait(max(0.0, until_s - time.monotonic())):
            _say("%s died, and the broker does not answer: its jobs come back after affinity_worker_timeout", name)

    def _tell(self, name: str, told: threading.Event) -> None:
        arrows = GuardFunctions(self._charge, _REPORT_TIMEOUT_S)
        while not told.is_set():
            try:
                recovered = arrows.recover()
            except (OSError, ServerError):
                time.sleep(0.05)
                continue
            _say("%s died; jobs taken back from it: %d", name, recovered)
            told.set()

    def _heartbeat_or_end(self) -> None:
        try:
            self._heartbeat()
        finally:
            os._exit(1)  # a guard that sends no heartbeat is of no use; the worker starts another

    def _heartbeat(self) -> None:
        """Send a heartbeat at each interval, and at once when the worker's event loop stands still or runs again."""
        worker, interval_s = self._worker, self._charge["interval_s"]
        arrows = GuardFunctions(self._charge, _BEAT_TIMEOUT_S)
        said_it_runs = True
        next_s = time.monotonic() + interval_s
        pause_s = _LOOK_AGAIN_S
        while True:
            now_s, loop_runs = time.monotonic(), worker.loop_runs
            if worker.is_gone or worker.is_stopped:
                time.sleep(_LOOK_AGAIN_S)
                next_s = now_s
                continue
            if now_s >= next_s or loop_runs != said_it_runs:
                try:
                    arrows.heartbeat(loop_runs)
                    said_it_runs, next_s, pause_s = loop_runs, now_s + interval_s, _LOOK_AGAIN_S
                except (OSError, ServerError):
                    time.sleep(pause_s)
                    next_s, pause_s = now_s, min(interval_s, 2 * pause_s)
                continue
            look_s = worker.ran_at_s + STALLED_AFTER_S if loop_runs else now_s + _LOOK_AGAIN_S
            time.sleep(max(0.01, min(look_s + 0.01, next_s) - now_s))


def _say(text: str, *values: object) -> None:
    """Write a line where its worker writes, in the form of Celery's log: the worker can write none any more."""
    line = f"[{time.strftime('%Y-%m-%d %H:%M:%S')}: WARNING/Guard] celery_affinity: {text % values}"
    with suppress(OSError):  # the reader of the log may be gone
        print(line, file=sys.stderr, flush=True)  # noqa: T201
    if _log_file is not None:
        with suppress(OSError), open(_log_file, "a", encoding="utf-8") as file:
            print(line, file=file)


class _Lines:
    """Reads lines of JSON from the standard input. None stands for the end of the input: the worker is gone."""

    def __init__(self) -> None:
        self._unread = b""

    def __call__(self) -> list[Any] | None:
        block = os.read(0, 65536)
        if not block:
            return None
        *lines, self._unread = (self._unread + block).split(b"\n")
        return [json.loads(line) for line in lines]


def main() -> None:
    """Read the charge, and guard."""
    lines = _Lines()
    first: list[Any] | None = []
    while not first:
        first = lines()
        if first is None:
            return  # the worker died before its charge came
    charge, *changes = first
    global _log_file
    _log_file = charge["log_file"]
    ParentWatch(charge).run(changes, lines)
    os._exit(0)  # a thread may still wait for a server that does not answer
