"""The guard's program: it sends heartbeats for the worker that started it, and reports that worker's death.

`guard` runs the program in a separate interpreter, with the standard library and only the modules imported here. Lines
of JSON on the standard input contain first a whole `GuardedWorker`, then each `GuardUpdate`. Arguments or environment
variables would show server and password to other users.

The main thread watches the worker and the pipe. A second thread sends heartbeats, so that a server that does not answer
cannot delay the detection of a death.
"""

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypedDict

from .pulse import STALLED_AFTER_S, PulseReader
from .redis_client import Address, GuardConnection, ServerError

#: Maximum seconds to wait for `ps`, because the heartbeat thread runs it.
_PS_TIMEOUT_S = 2.0


class GuardedProcess:
    """The guard's parent process, in the session *session*, and the forks of a dead parent.

    *pulse* is the descriptor of the parent's `Pulse`. *kin* are both descriptors of its `ForkMarker`, the read end
    first.
    """

    def __init__(self, pid: int, session: int, pulse: int, kin: tuple[int, int]) -> None:
        self.pid = pid
        self._session = session
        self._kin_read, self._kin_write = kin
        self._mark = os.fstat(self._kin_read)
        self._pulse = PulseReader(pulse)
        self.handle = _handle(pid)
        self._sees_marks = self._has_mark(pid)  # if so, the marks of the parent's forks are readable too

    @property
    def is_gone(self) -> bool:
        # The pid can belong to another process by now, but the guard's parent changes only when the worker ends.
        return os.getppid() != self.pid

    @property
    def is_stopped(self) -> bool:
        """True if a signal or a debugger suspended the process."""
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
        return time.monotonic() - self.ran_at_s <= STALLED_AFTER_S

    @property
    def ran_at_s(self) -> float:
        return self._pulse.ran_at_s

    def end_children(self, until_s: float) -> bool:
        """End the processes that the worker forked. Return True once all have ended, False at *until_s* (monotonic)."""
        while True:
            children = self._children()
            for child in children:
                _kill(child, self._has_mark)
            # At the end of file, no process has the write end open.
            if select.select([self._kin_read], [], [], 0)[0] or (self._sees_marks and not children):
                return True
            if time.monotonic() > until_s:
                return False
            time.sleep(0.02)

    def _children(self) -> list[int]:
        """Return the pids of the worker's forks, and of their forks, except for forks in a session of their own."""
        try:
            pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            return []
        return [pid for pid in pids if self._has_mark(pid) and _session(pid) == self._session]

    def _has_mark(self, pid: int) -> bool:
        try:
            status = os.stat(f"/proc/{pid}/fd/{self._kin_write}")
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == (self._mark.st_dev, self._mark.st_ino)


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
    import subprocess  # imported here, because only systems without /proc need it

    command = ["ps", "-o", "state=", "-p", str(pid)]
    try:
        result = subprocess.run(command, capture_output=True, check=False, timeout=_PS_TIMEOUT_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        return b""
    return result.stdout.strip()


def _kill(pid: int, is_target: Callable[[int], bool]) -> None:
    """Send SIGKILL to *pid* if *is_target* confirms it. The open handle keeps the pid from naming another process."""
    handle = _handle(pid)
    try:
        if is_target(pid):
            if handle is None:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        pass  # the process has ended, or now belongs to another user
    finally:
        if handle is not None:
            os.close(handle)


#: Seconds between checks of a stalled or stopped worker, and before the first retry after a server did not answer.
_RECHECK_S = 0.25

#: Seconds between two checks for the parent on systems without pidfd.
_PARENT_CHECK_S = 0.25

#: Maximum seconds for which a heartbeat, and the report of a death, wait for a connection or a reply.
_BEAT_TIMEOUT_S = 2.0
_REPORT_TIMEOUT_S = 1.0

#: Maximum seconds for which the guard outlives its worker, and their share for ending the pool's processes.
_MAX_OUTLIVE_S = 1.0
_KILL_S = 0.6

#: File of the worker's ``--logfile``, if it has one.
_log_file: str | None = None


class GuardedWorker(TypedDict):
    """Facts that a guard needs about its worker."""

    #: Worker id; *name* is the node name, *interval_s* the number of seconds between two heartbeats.
    worker: str
    name: str
    interval_s: float
    #: Descriptor of the `Pulse`; *kin* are both descriptors of the `ForkMarker`.
    pulse: int
    kin: tuple[int, int]
    #: True if the pool's processes are forks of the worker.
    ends_children: bool
    #: Process id of the worker; *session* is the session id.
    parent: int
    session: int
    server: Address
    #: Command of each server function that the guard invokes, without the arguments.
    commands: dict[str, list[str]]
    #: Names of the values in these functions' replies.
    replies: dict[str, tuple[str, ...]]
    #: Command that loads these functions.
    loads: list[str]
    log_file: str | None


class GuardUpdate(TypedDict, total=False):
    """A change for a guard: another server, or the worker's regular exit."""

    server: Address
    leave: bool


class GuardFunctions:
    """The server functions that a guard invokes. Each raises OSError or ServerError, and can be repeated."""

    def __init__(self, guarded: GuardedWorker, timeout_s: float) -> None:
        self._guarded = guarded
        self._timeout_s = timeout_s
        self._connection: GuardConnection | None = None
        self._server: Address | None = None

    def heartbeat(self, loop_runs: bool) -> None:
        """Report that the worker is alive, and whether its event loop runs."""
        while self._run("heartbeat", self._guarded["worker"], int(loop_runs))["again"]:
            pass

    def recover(self) -> int:
        """Report that the worker is dead. Return the number of its jobs, which are now pending again or lost."""
        recovered, again = 0, True
        while again:
            reply = self._run("recover", self._guarded["worker"])
            recovered, again = recovered + reply["recovered"], reply["again"]
        return recovered

    def _run(self, name: str, *arguments: object) -> dict[str, Any]:
        """Invoke a function, and claim jobs for the types that it left unfilled, like `Scheduler`."""
        reply = self._named_reply(name, *arguments)
        types = reply["unfilled"].split()
        while types:
            types = self._named_reply("claim", *types)["unfilled"].split()
        return reply

    def _named_reply(self, name: str, *arguments: object) -> dict[str, Any]:
        """Invoke a function. Return the values of its reply by name, or raise ConnectionError for another reply."""
        names = self._guarded["replies"][name]
        reply = self._load_and_call([*self._guarded["commands"][name], *arguments])
        if isinstance(reply, list) and len(reply) == len(names):
            named = dict(zip(names, reply, strict=True))
            if isinstance(named["unfilled"], bytes):
                return named
        raise ConnectionError(f"the server gave a reply that is not the reply of a server function: {reply!r:.200}")

    def _load_and_call(self, command: list[object]) -> object:
        """Invoke a command. If the server lacks its function, load the functions first."""
        try:
            return self._call(*command)
        except ServerError as exc:
            if not _is_missing(exc):
                raise
        try:
            self._call(*self._guarded["loads"])
        except ServerError as exc:
            if not _is_loaded(exc):
                raise
        return self._call(*command)

    def _call(self, *words: object) -> object:
        """Invoke a command. After any error except a missing library, the next invocation opens a new connection."""
        if self._connection is None or self._server is not self._guarded["server"]:
            self.close()
            self._server = self._guarded["server"]
            self._connection = GuardConnection(self._server, self._timeout_s)
        try:
            return self._connection.call(*words)
        except (OSError, ServerError) as exc:
            if not (_is_missing(exc) or _is_loaded(exc)):
                self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _is_missing(exc: Exception) -> bool:
    return isinstance(exc, ServerError) and ("Function not found" in str(exc) or str(exc).startswith("NOSCRIPT"))


def _is_loaded(exc: Exception) -> bool:
    """Return True if another client has already loaded the library."""
    return isinstance(exc, ServerError) and "already exists" in str(exc)


class ParentWatch:
    def __init__(self, guarded: GuardedWorker) -> None:
        self._guarded = guarded
        self._worker = GuardedProcess(guarded["parent"], guarded["session"], guarded["pulse"], guarded["kin"])

    def run(self, changes: Iterable[GuardUpdate], more: Callable[[], list[GuardUpdate] | None]) -> None:
        """Guard until the worker leaves or dies.

        *changes* arrived with the first line. *more* returns further changes, or None if the worker can send no more.
        """
        if not self._apply(changes):
            return
        threading.Thread(target=self._heartbeat_or_end, daemon=True).start()
        handle = self._worker.handle
        watched = [0] if handle is None else [0, handle]
        while not self._worker.is_gone:
            ready = select.select(watched, [], [], _PARENT_CHECK_S if handle is None else None)[0]
            if 0 in ready:
                further = more()
                if further is None:
                    break
                if not self._apply(further):
                    return
            if handle in ready:
                break
        self._report()

    def _apply(self, changes: Iterable[GuardUpdate]) -> bool:
        """Apply *changes*. Return False if the worker leaves."""
        for change in changes:
            if "leave" in change:
                return False
            self._guarded["server"] = change["server"]
        return True

    def _report(self) -> None:
        until_s = time.monotonic() + _MAX_OUTLIVE_S
        name = f"{self._guarded['name']} (pid {self._worker.pid})"
        if self._guarded["ends_children"] and not self._worker.end_children(time.monotonic() + _KILL_S):
            _log_line(
                "%s died, but its pool processes did not end: its jobs are reclaimed after affinity_worker_timeout",
                name,
            )
            return
        reported = threading.Event()
        threading.Thread(target=self._report_death, args=(name, reported), daemon=True).start()
        if not reported.wait(max(0.0, until_s - time.monotonic())):
            _log_line(
                "%s died, and the broker does not answer: its jobs are reclaimed after affinity_worker_timeout", name
            )

    def _report_death(self, name: str, reported: threading.Event) -> None:
        functions = GuardFunctions(self._guarded, _REPORT_TIMEOUT_S)
        while not reported.is_set():
            try:
                recovered = functions.recover()
            except (OSError, ServerError):
                time.sleep(0.05)
                continue
            _log_line("%s died; jobs reclaimed from it: %d", name, recovered)
            reported.set()

    def _heartbeat_or_end(self) -> None:
        try:
            self._heartbeat()
        finally:
            os._exit(1)  # a guard without heartbeats is useless; the worker starts another

    def _heartbeat(self) -> None:
        """Send a heartbeat at each interval, and immediately when the worker's event loop stalls or runs again."""
        worker, interval_s = self._worker, self._guarded["interval_s"]
        functions = GuardFunctions(self._guarded, _BEAT_TIMEOUT_S)
        reported_loop_runs = True
        next_s = time.monotonic() + interval_s
        pause_s = _RECHECK_S
        while True:
            now_s, loop_runs = time.monotonic(), worker.loop_runs
            if worker.is_gone or worker.is_stopped:
                time.sleep(_RECHECK_S)
                next_s = now_s
                continue
            if now_s >= next_s or loop_runs != reported_loop_runs:
                try:
                    functions.heartbeat(loop_runs)
                    reported_loop_runs, next_s, pause_s = loop_runs, now_s + interval_s, _RECHECK_S
                except (OSError, ServerError):
                    time.sleep(pause_s)
                    next_s, pause_s = now_s, min(interval_s, 2 * pause_s)
                continue
            look_s = worker.ran_at_s + STALLED_AFTER_S if loop_runs else now_s + _RECHECK_S
            time.sleep(max(0.01, min(look_s + 0.01, next_s) - now_s))


def _log_line(text: str, *values: object) -> None:
    """Write a line to the worker's log, in Celery's log format, because the worker can no longer write."""
    line = f"[{time.strftime('%Y-%m-%d %H:%M:%S')}: WARNING/Guard] celery_affinity: {text % values}"
    with suppress(OSError):  # the reader of the log may have ended
        print(line, file=sys.stderr, flush=True)  # noqa: T201
    if _log_file is not None:
        with suppress(OSError), open(_log_file, "a", encoding="utf-8") as file:
            print(line, file=file)


def _read_blocks() -> Iterator[list[Any]]:
    """Yield the lines of JSON in each block of the standard input, which ends after the worker's death."""
    unread = b""
    while block := os.read(0, 65536):
        *lines, unread = (unread + block).split(b"\n")
        yield [json.loads(line) for line in lines]


def main() -> None:
    """Read the facts about the worker, and guard it."""
    blocks = _read_blocks()
    first_lines = next(filter(None, blocks), None)
    if first_lines is None:
        return  # the worker died before it had sent a line
    guarded_worker, *changes = first_lines
    global _log_file
    _log_file = guarded_worker["log_file"]
    ParentWatch(guarded_worker).run(changes, lambda: next(blocks, None))
    os._exit(0)  # a thread may still wait for a server that does not answer
