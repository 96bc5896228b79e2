"""Plans in advance when each document is requested, so that both sides get exactly the same work."""

import json
import os
import random
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.pipeline.documents import UnreadableError, read, type_of

SEED = 7

#: Maximum number of seconds for measuring how long the documents take to read.
TRIAL_S = 3.0

#: Users' requests per second of the run, and the fraction of the run during which they arrive.
ON_DEMAND_PER_S = 1.5
LAST_REQUEST = 0.9

#: The batch is published between these fractions of the run: not at its beginning, and faster than it can be read.
BATCH = (0.12, 0.6)

#: Maximum number of times that the batch reads each document.
MAX_ROUNDS = 60

#: Slots of the pipeline, and slots that can run each type: the specialist's slot and the versatile worker's slot.
SLOTS = 4
SLOTS_PER_TYPE = 2

#: Factor on the reading time of a document for indexing and shared cores, and seconds for the messages of two tasks.
OVERHEAD = 1.2
MESSAGES_S = 0.01


@dataclass(frozen=True)
class Request:
    """A request to read and index one document."""

    #: Seconds after the start.
    at: float
    path: str
    mode: str


@dataclass(frozen=True)
class Plan:
    requests: list[Request]
    documents: int
    omitted: int
    rounds: int

    def count(self, mode: str) -> int:
        return sum(request.mode == mode for request in self.requests)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps([asdict(request) for request in self.requests]), encoding="utf-8")


def load(path: Path) -> list[Request]:
    return [Request(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


def make(documents: list[Path], seconds: float) -> Plan:
    """Return a plan that keeps the slots busy for about *seconds*.

    The batch reads the documents once or in several rounds. If there are too many documents, some are omitted. Users'
    requests come at random times.
    """
    rng = random.Random(SEED)
    shuffled = rng.sample(documents, len(documents))
    costs = _costs(shuffled)
    begin, end = (part * seconds for part in BATCH)
    chosen: list[Path] = []
    for document in shuffled:
        if chosen and _duration([*chosen, document], costs) > seconds - begin:
            break
        chosen.append(document)
    rounds = min(MAX_ROUNDS, max(1, round((seconds - begin) / max(_duration(chosen, costs), 0.001))))
    requests = []
    for number in range(rounds):
        at = begin + (end - begin) * number / rounds
        requests += [Request(at, str(document), "queued") for document in rng.sample(chosen, len(chosen))]
    readable = [document for document in chosen if costs[document] > 0] or chosen
    for _ in range(max(3, round(ON_DEMAND_PER_S * seconds))):
        requests.append(Request(rng.uniform(0, LAST_REQUEST) * seconds, str(rng.choice(readable)), "on_demand"))
    requests.sort(key=lambda request: request.at)
    return Plan(requests, len(chosen), len(documents) - len(chosen), rounds)


def _duration(documents: list[Path], costs: dict[Path, float]) -> float:
    """Return the duration of one round in seconds: limited by the cores, or by the slots of one type."""
    per_type = {"pdf": 0.0, "excel": 0.0}
    for document in documents:
        per_type[type_of(document)] += OVERHEAD * costs[document] + MESSAGES_S
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(sum(per_type.values()) / min(SLOTS, cores), max(per_type.values()) / SLOTS_PER_TYPE)


def _costs(documents: list[Path]) -> dict[Path, float]:
    """Return the reading time of each document in seconds: 0 if unreadable, the type's mean if it was not measured."""
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
    """Not a subclass of Exception, because `documents` would report an Exception as a damaged file."""


def _give_up(*_: object) -> None:
    raise _TooLongError
