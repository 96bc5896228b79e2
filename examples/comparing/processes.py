"""Starts processes that end with the example, even if it is killed."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """On Linux, end this process with its parent, so that even kill -9 of the example stops the workers."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Processes:
    """A context manager that starts processes, and stops them and their children on exit."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self._env = os.environ | env
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def python(self, name: str, *args: str) -> None:
        """Start `python -m args` in its own session, so that Ctrl-C in the terminal does not interrupt it."""
        with self.log(name).open("wb") as log:
            self._started[name] = subprocess.Popen(
                [sys.executable, "-m", *args],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def failed(self) -> str | None:
        """Return the name of a process that has exited with an error, or None."""
        return next((name for name, process in self._started.items() if process.poll()), None)

    def wait_for_end(self, name: str, max_s: float, *, terminate: bool = True) -> int | None:
        """Wait until the process ends, after a SIGTERM if *terminate*. Return its exit code, or None after *max_s*."""
        process = self._started[name]
        if terminate:
            process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(max_s)
        return None

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not interrupt the cleanup, which takes at most four seconds.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTIONS}
        try:
            self._stop(grace_s=4.0 if kind is None else 1.0)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _stop(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        for process in self._started.values():
            process.terminate()
        for process in self._started.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._started.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # the rest of its session, such as pool processes
            process.wait()
