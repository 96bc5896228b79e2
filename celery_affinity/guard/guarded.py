"""The worker's process as its guard sees it: alive, suspended, standing still or gone; and a dead worker's forks."""

import os
import select
import signal
import time
from collections.abc import Callable

from .pulse import STALLED_AFTER_S, PulseReader

#: Longest wait, s, for `ps`: the thread that waits is the one that sends heartbeats.
_PS_ANSWERS_WITHIN_S = 2.0


class Guarded:
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
