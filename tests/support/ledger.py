"""The runs of tasks, written down by the tasks of `tests.support.apps.typed`, outside of Redis."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

#: Longest time, s, between a primary's death and the start of the job that this primary gave out last.
NEAR_S = 0.5


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
        return [_entry(*line.split()) for line in whole_lines(self.path)]

    def starts(self):
        return Counter(entry.job for entry in self.entries() if entry.event == "start")

    def ends(self):
        return Counter(entry.job for entry in self.entries() if entry.event == "end")


def ran_again(entries, deaths_s=()):
    """Yield each run of a job that was begun again later.

    Left out is a run whose claim the server forgot: replication is asynchronous, so the last write before a primary's
    death, at one of *deaths_s*, may be lost. The next claim has the fence of the lost one then.
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
    """Return the lines of a file that another process writes now: without the last one while its end is not there."""
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []


def _entry(event, job, pid, time_s, fence="0", key=""):
    return Entry(event, job, int(pid), float(time_s), int(fence), key)
