"""Decides beforehand which documents are asked for and when, so that the fleet gets the same work twice."""

import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from examples.pipeline.documents import type_of

SEED = 11

#: Workers notice within so many seconds that a recording is on.
HEARTBEAT_S = 1.0

#: The fleet: name of a worker -> its types, and its slots.
WORKERS = {"pdf": ("pdf", 2), "excel": ("excel", 1), "any": ("pdf,excel", 1)}

#: Shortest and longest time, s, that a document of a type takes in all.
TAKES_S = {"pdf": (1.2, 2.8), "excel": (0.8, 2.0)}

#: Slots that the documents of a type would keep busy until the end, those that come one by one.
BUSY_SLOTS = {"pdf": 3.0, "excel": 0.8}

#: The type whose documents arrive as a flood as well: when, and for how long, as parts of the run, and its work, in
#: slots that it would keep busy throughout.
FLOOD, FLOOD_BEGINS, FLOOD_LASTS, FLOOD_SLOTS = "excel", 0.2, 0.05, 0.8

#: Time, s, that the client has for its first call.
CONNECTS_S = 2.0

#: Share of the other documents for which a user waits.
ON_DEMAND = 0.2


@dataclass(frozen=True)
class Call:
    """A document that is to be read, *at* so many seconds after the start; it takes *answer_s*."""

    at: float
    path: str
    answer_s: float
    on_demand: bool


def make(documents: list[Path], length_s: float) -> list[Call]:
    """Return the calls of *length_s*, in order: more work than the fleet can do in this time, by some 15 %."""
    rng = random.Random(SEED)
    found: list[Call] = []
    for type_, slots in BUSY_SLOTS.items():
        of_type = [each for each in documents if type_of(each) == type_]
        found += _calls(rng, of_type, type_, slots * length_s, (0.0, length_s), ON_DEMAND)
        if type_ == FLOOD:
            begin_s = FLOOD_BEGINS * length_s
            flood = (begin_s, begin_s + FLOOD_LASTS * length_s)
            found += _calls(rng, of_type, type_, FLOOD_SLOTS * length_s, flood, 0.0)
    if not found:
        return []
    # The client connects with its first call, which takes a while: an easy document, and then a quiet moment.
    easy = min(documents, key=lambda each: each.stat().st_size)
    later = (replace(each, at=each.at + CONNECTS_S) for each in found)
    return [Call(0.0, str(easy), 0.0, on_demand=False), *sorted(later, key=lambda each: each.at)]


def _calls(
    rng: random.Random, documents: list[Path], type_: str, work_s: float, within: tuple[float, float], on_demand: float
) -> list[Call]:
    """Return calls that take *work_s* together, at random times; none without documents of the type."""
    found: list[Call] = []
    while documents and sum(each.answer_s for each in found) < work_s:
        path, takes_s = str(rng.choice(documents)), rng.uniform(*TAKES_S[type_])
        found.append(Call(rng.uniform(*within), path, takes_s, rng.random() < on_demand))
    return found


def save(calls: list[Call], path: Path) -> None:
    path.write_text(json.dumps([asdict(each) for each in calls]), encoding="utf-8")


def load(path: Path) -> list[Call]:
    return [Call(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]
