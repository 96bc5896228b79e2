"""Decides beforehand what is asked for and when, so that both sides get exactly the same work."""

import json
import os
import random
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.pipeline.documents import UnreadableError, read, type_of

SEED = 7

#: Looking at the documents to see how long they take may itself take this long.
TRIAL_S = 3.0

#: Requests of users, per second of the run, and until when they come.
ON_DEMAND_PER_S = 1.5
LAST_REQUEST = 0.9

#: The batch is published within this part of the run: after a quiet beginning, and faster than it can be read.
BATCH = (0.12, 0.6)

#: Few or small documents are not read more often than this.
MAX_ROUNDS = 60

#: The pipeline's four slots, and how many of them read each type: a specialist's and the versatile worker's.
SLOTS = 4
SLOTS_PER_TYPE = 2

#: What a document takes beyond its reading: a part of that (indexing, shared cores), and two tasks' messages.
OVERHEAD = 1.2
MESSAGES_S = 0.01


@dataclass(frozen=True)
class Request:
    """One document to be read and indexed, *at* seconds after the start."""

    at: float
    path: str
    mode: str


@dataclass(frozen=True)
class Plan:
    requests: list[Request]
    documents: int
    left_out: int
    rounds: int

    def count(self, mode: str) -> int:
        return sum(request.mode == mode for request in self.requests)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps([asdict(request) for request in self.requests]), encoding="utf-8")


def load(path: Path) -> list[Request]:
    return [Request(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


def make(documents: list[Path], seconds: float) -> Plan:
    """Return a plan that keeps the slots busy for about *seconds*: the batch in rounds, requests at random times.

    All documents are read several times if they are few, and some are left out if they are too many.
    """
    rng = random.Random(SEED)
    shuffled = rng.sample(documents, len(documents))
    costs = _costs(shuffled)
    begin, end = (part * seconds for part in BATCH)
    taken: list[Path] = []
    for document in shuffled:
        if taken and _duration([*taken, document], costs) > seconds - begin:
            break
        taken.append(document)
    rounds = min(MAX_ROUNDS, max(1, round((seconds - begin) / max(_duration(taken, costs), 0.001))))
    requests = []
    for number in range(rounds):
        at = begin + (end - begin) * number / rounds
        requests += [Request(at, str(document), "queued") for document in rng.sample(taken, len(taken))]
    readable = [document for document in taken if costs[document] > 0] or taken
    for _ in range(max(3, round(ON_DEMAND_PER_S * seconds))):
        requests.append(Request(rng.uniform(0, LAST_REQUEST) * seconds, str(rng.choice(readable)), "on_demand"))
    requests.sort(key=lambda request: request.at)
    return Plan(requests, len(taken), len(documents) - len(taken), rounds)


def _duration(documents: list[Path], costs: dict[Path, float]) -> float:
    """Return how many seconds one round takes: limited by the cores, or by the slots of one type."""
    per_type = {"pdf": 0.0, "excel": 0.0}
    for document in documents:
        per_type[type_of(document)] += OVERHEAD * costs[document] + MESSAGES_S
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(sum(per_type.values()) / min(SLOTS, cores), max(per_type.values()) / SLOTS_PER_TYPE)


def _costs(documents: list[Path]) -> dict[Path, float]:
    """Return the seconds that reading each document takes; 0 if unreadable, a mean if there was no time to try."""
    costs: dict[Path, float] = {}
    deadline = time.monotonic() + TRIAL_S
    previous = signal.signal(signal.SIGALRM, _give_up)
    try:
        for document in documents:
            if time.monotonic() > deadline:
                break
            costs[document] = _cost(document)
    finally:
        signal.signal(signal.SIGALRM, previous)
    for document in documents:
        if document not in costs:
            same = [cost for other, cost in costs.items() if type_of(other) == type_of(document)]
            costs[document] = sum(same) / len(same) if same else 0.1
    return costs


def _cost(document: Path) -> float:
    started = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, TRIAL_S)
    try:
        read(document)
    except _TooLongError:
        return TRIAL_S
    except UnreadableError:
        return 0.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return time.perf_counter() - started


class _TooLongError(BaseException):
    """No Exception, which reading would take for a damaged file."""


def _give_up(*_: object) -> None:
    raise _TooLongError
