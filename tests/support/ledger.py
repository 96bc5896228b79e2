"""The runs of tasks, recorded outside Redis by the tasks of `tests.support.apps.typed`."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

#: Max seconds between a primary's death and the start of the last job that it claimed.
NEAR_S = 0.5


@dataclass(frozen=True)
class Entry:
    event: str
    job: str
    pid: int
    time_s: float
    #: Fencing token that the task saw, or 0.
    fence: int = 0
    #: Key that the task saw, or "".
    key: str = ""


class Ledger:
    def __init__(self, path: Path):
        self.path = path

    def entries(self):
        return [_entry(*line.split()) for line in whole_lines(self.path)]

    def starts(self):
        return Counter(entry.job for entry in self.entries() if entry.event == "start")

    def ends(self):
        return Counter(entry.job for entry in self.entries() if entry.event == "end")


def ran_again(entries, deaths_s=()):
    """Yield each run of a job that was started again later.

    A run whose claim the server lost is omitted: replication is asynchronous, so the last write before a primary's
    death, at one of *deaths_s*, may be lost. The next claim then has the same fencing token as the lost claim.
    """
    last = {}
    for entry in entries:
        if entry.event != "start":
            continue
        earlier = last.get(entry.job)
        last[entry.job] = entry
        if earlier is None:
            continue
        is_forgotten = 0 != earlier.fence == entry.fence
        if not (is_forgotten and any(abs(earlier.time_s - at) < NEAR_S for at in deaths_s)):
            yield earlier


def whole_lines(path):
    """Return the complete lines of a file that another process may still be writing."""
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []


def _entry(event, job, pid, time_s, fence="0", key=""):
    return Entry(event, job, int(pid), float(time_s), int(fence), key)
