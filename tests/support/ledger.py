"""The runs of tasks, written down by the tasks of `tests.support.apps.typed`, outside of Redis."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """*fence*, *key*: as the task saw them; 0 and "" if there are none."""

    event: str
    job: str
    pid: int
    time_s: float
    fence: int = 0
    key: str = ""


class Ledger:
    def __init__(self, path: Path):
        self.path = path

    def entries(self):
        if not self.path.exists():
            return []
        whole = self.path.read_text().rpartition("\n")[0]  # the last line may be half written
        rows = [line.split() for line in whole.splitlines()]
        return [_entry(*row) for row in rows]

    def starts(self):
        return Counter(entry.job for entry in self.entries() if entry.event == "start")

    def ends(self):
        return Counter(entry.job for entry in self.entries() if entry.event == "end")


def _entry(event, job, pid, time_s, fence="0", key=""):
    return Entry(event, job, int(pid), float(time_s), int(fence), key)
