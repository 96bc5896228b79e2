"""The events of a storm, outside of Redis: one line an event, appended in one write by the process that saw it.

Times are of the monotonic clock, which all processes of a machine share and no fault touches.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from urllib.parse import quote, unquote


@dataclass(frozen=True, slots=True)
class Event:
    """An event that the process *pid* saw. *subject*: a job, or another thing that the kind is about."""

    kind: str
    at: float
    pid: int
    subject: str
    facts: dict[str, str]


class Ledger:
    """Writes events to a file that many processes share, and reads those that are new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._read_to = 0

    def note(self, kind: str, subject: str, **facts: object) -> float:
        """Append an event. Return its time."""
        if self._descriptor is None:  # opened late: a path alone passes between processes
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        at = monotonic()
        told = "".join(f" {name}={quote(str(value), safe=',:@.-')}" for name, value in facts.items())
        line = f"{kind} {at:.6f} {os.getpid()} {quote(subject, safe='')}{told}\n".encode()
        written = os.write(self._descriptor, line)
        assert written == len(line), "one write, so that lines never mix"
        return at

    def size(self) -> int:
        """Return the number of bytes written so far, which grows with each event."""
        return self.path.stat().st_size if self.path.exists() else 0

    def new(self) -> Iterator[Event]:
        """Yield what was written since the last call, in the order of the file."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read_to += len(line)
                yield _parse(line.decode())


def _parse(line: str) -> Event:
    kind, at, pid, subject, *told = line.split()
    facts = dict(each.split("=", 1) for each in told)
    return Event(kind, float(at), int(pid), unquote(subject), {name: unquote(value) for name, value in facts.items()})
