"""The runs of tasks, as the tasks of `tests.support.apps.typed` wrote them down, outside of Redis."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    event: str
    job: str
    pid: int
    time_s: float


class Ledger:
    def __init__(self, path: Path):
        self.path = path

    def entries(self):
        if not self.path.exists():
            return []
        whole = self.path.read_text().rpartition("\n")[0]  # the last line may be half written
        rows = [line.split() for line in whole.splitlines()]
        return [Entry(event, job, int(pid), float(time_s)) for event, job, pid, time_s in rows]

    def starts(self):
        return Counter(entry.job for entry in self.entries() if entry.event == "start")

    def ends(self):
        return Counter(entry.job for entry in self.entries() if entry.event == "end")
