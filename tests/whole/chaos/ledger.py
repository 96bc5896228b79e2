"""The events of a storm, stored outside Redis: one line per event, appended in one write by the observing process.

Times are from the monotonic clock, which all processes of a machine share and no fault changes.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from urllib.parse import quote, unquote


@dataclass(frozen=True, slots=True)
class Event:
    """An event observed by the process *pid*. *subject*: a job or another object, depending on the kind."""

    kind: str
    at: float
    pid: int
    subject: str
    facts: dict[str, str]


class Ledger:
    """Writes events to a file that many processes share, and reads new events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._read_to = 0

    def note(self, kind: str, subject: str, **facts: object) -> float:
        """Append an event. Return its time."""
        if self._descriptor is None:  # opened late: processes share only the path
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        at = monotonic()
        texts = "".join(f" {name}={quote(str(value), safe=',:@.-')}" for name, value in facts.items())
        line = f"{kind} {at:.6f} {os.getpid()} {quote(subject, safe='')}{texts}\n".encode()
        written = os.write(self._descriptor, line)
        assert written == len(line), "one write, so that lines never mix"
        return at

    def size(self) -> int:
        """Return the number of bytes written so far, which grows with each event."""
        return self.path.stat().st_size if self.path.exists() else 0

    def new(self) -> Iterator[Event]:
        """Yield the events since the last call, in file order."""
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
    kind, at, pid, subject, *texts = line.split()
    facts = dict(each.split("=", 1) for each in texts)
    return Event(kind, float(at), int(pid), unquote(subject), {name: unquote(value) for name, value in facts.items()})
