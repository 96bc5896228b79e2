"""The plan files ("books"), one per city: the applied changes, the dropped stops, and the tours.

A run reads the book of its city, plans, and writes the book. If two runs do this at the same time, changes are lost.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from examples.routes.cities import City
from examples.routes.planner import plan


class Change(TypedDict):
    """A stop is dropped from the tours, or added again."""

    number: int
    stop: str
    is_wanted: bool


class Book(TypedDict):
    """The state of a city."""

    #: Numbers of all applied changes.
    changes: list[int]
    #: Names of the dropped stops.
    dropped: list[str]
    #: Names of the stops in order, one tour per agent.
    tours: list[list[str]]
    km: float


def create(folder: Path, city: City) -> None:
    _write(folder, city, {"changes": [], "dropped": [], "tours": [], "km": 0.0})


def read(folder: Path, city: City) -> Book:
    book: Book = json.loads(_path(folder, city).read_text(encoding="utf-8"))
    return book


def apply_changes(folder: Path, city: City, changes: Sequence[Change]) -> Book:
    """Apply *changes* in order to the book of *city*, plan once, and return the new book."""
    book = read(folder, city)
    dropped = set(book["dropped"])
    for change in changes:
        (dropped.discard if change["is_wanted"] else dropped.add)(change["stop"])
    new_plan = plan(city.base, [stop for stop in city.stops if stop.name not in dropped], city.agents)
    applied = sorted({*book["changes"], *(change["number"] for change in changes)})
    tours = [[stop.name for stop in tour] for tour in new_plan.tours]
    new_book: Book = {"changes": applied, "dropped": sorted(dropped), "tours": tours, "km": new_plan.km}
    _write(folder, city, new_book)
    return new_book


def _write(folder: Path, city: City, book: Book) -> None:
    path = _path(folder, city)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(book, ensure_ascii=False, indent=1), encoding="utf-8")
    new.replace(path)  # atomic: a reader gets the old book or the new one


def _path(folder: Path, city: City) -> Path:
    return folder / f"{city.name}.json"
