"""Plans in advance when each document is requested, so that the fleet gets the same work twice."""

import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from examples.pipeline.documents import type_of

SEED = 11

#: Heartbeat interval in seconds. Workers notice the start of a recording with a heartbeat.
HEARTBEAT_S = 1.0

#: The fleet: worker name -> (types, number of slots).
WORKERS = {"pdf": ("pdf", 2), "excel": ("excel", 1), "any": ("pdf,excel", 1)}

#: Type -> shortest and longest duration of a task, in seconds.
TAKES_S = {"pdf": (1.2, 2.8), "excel": (0.8, 2.0)}

#: Type -> number of slots that its steady stream of documents keeps busy.
BUSY_SLOTS = {"pdf": 3.0, "excel": 0.8}

#: The type with an additional flood of documents; the begin and the duration of the flood, as fractions of the run;
#: and the flood's work, as the number of slots that it would keep busy during the whole run.
FLOOD, FLOOD_BEGINS, FLOOD_LASTS, FLOOD_SLOTS = "excel", 0.2, 0.05, 0.8

#: Seconds between the client's first call, during which it connects, and the other calls.
CONNECTS_S = 2.0

#: Share of on-demand calls among the documents outside of the flood.
ON_DEMAND = 0.2


@dataclass(frozen=True)
class Call:
    """A call that reads one document."""

    #: When the call is published, in seconds after the start.
    at: float
    path: str
    #: Duration of the task in seconds, including the simulated service.
    answer_s: float
    on_demand: bool


def make(documents: list[Path], length_s: float) -> list[Call]:
    """Return the calls of *length_s* seconds, in order: some 15 % more work than the fleet can do in this time."""
    rng = random.Random(SEED)
    calls: list[Call] = []
    for type_, slots in BUSY_SLOTS.items():
        paths = [path for path in documents if type_of(path) == type_]
        calls += _calls(rng, paths, type_, slots * length_s, (0.0, length_s), ON_DEMAND)
        if type_ == FLOOD:
            begin_s = FLOOD_BEGINS * length_s
            flood = (begin_s, begin_s + FLOOD_LASTS * length_s)
            calls += _calls(rng, paths, type_, FLOOD_SLOTS * length_s, flood, 0.0)
    if not calls:
        return []
    # The first call takes long, because the client connects: publish a small document, and pause before the others.
    smallest = min(documents, key=lambda path: path.stat().st_size)
    later = (replace(call, at=call.at + CONNECTS_S) for call in calls)
    return [Call(0.0, str(smallest), 0.0, on_demand=False), *sorted(later, key=lambda call: call.at)]


def _calls(
    rng: random.Random, documents: list[Path], type_: str, work_s: float, within: tuple[float, float], on_demand: float
) -> list[Call]:
    """Return calls with a total duration of *work_s*, at random times. Return [] if there are no documents."""
    calls: list[Call] = []
    while documents and sum(call.answer_s for call in calls) < work_s:
        path, takes_s = str(rng.choice(documents)), rng.uniform(*TAKES_S[type_])
        calls.append(Call(rng.uniform(*within), path, takes_s, rng.random() < on_demand))
    return calls


def save(calls: list[Call], path: Path) -> None:
    path.write_text(json.dumps([asdict(call) for call in calls]), encoding="utf-8")


def load(path: Path) -> list[Call]:
    return [Call(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]
