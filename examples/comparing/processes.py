"""Starts processes that never outlive the demo, whichever way it ends."""

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
    """Ask Linux to end this process with its parent, so that not even kill -9 of the demo leaves a worker behind."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Processes:
    """A context: what was started within ends with it, children included."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self._env = os.environ | env
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def python(self, name: str, *args: str) -> None:
        """Start `python -m args` in a session of its own, where a terminal's Ctrl-C does not reach it."""
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
        """Return the name of a process that has ended badly, or None."""
        return next((name for name, process in self._started.items() if process.poll()), None)

    def end(self, name: str, patience_s: float, *, terminate: bool = True) -> int | None:
        """Return the exit code of a process, which ends by itself if not to *terminate*; None if it did not in time."""
        process = self._started[name]
        if terminate:
            process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(patience_s)
        return None

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not stop the clearing up; it takes four seconds at most.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTIONS}
        try:
            self._stop(patience_s=4.0 if kind is None else 1.0)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        for process in self._started.values():
            process.terminate()
        for process in self._started.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._started.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # whoever is left in its session, pool children too
            process.wait()
