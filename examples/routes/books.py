"""The book of a city: its stops that are wanted, the changes it knows, and the plan that follows. A file for each city.

Who changes a book reads it, plans, and writes it. If two do so at once, changes are lost.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from examples.routes.cities import City
from examples.routes.planner import plan


class Change(TypedDict):
    """A stop drops out of the tours, or comes back."""

    number: int
    stop: str
    is_wanted: bool


class Book(TypedDict):
    """Tours are names of stops, one tour for each agent."""

    changes: list[int]
    dropped: list[str]
    tours: list[list[str]]
    km: float


def new(folder: Path, city: City) -> None:
    _write(folder, city, {"changes": [], "dropped": [], "tours": [], "km": 0.0})


def read(folder: Path, city: City) -> Book:
    book: Book = json.loads(_path(folder, city).read_text(encoding="utf-8"))
    return book


def change(folder: Path, city: City, changes: Sequence[Change]) -> Book:
    """Take *changes*, the oldest first, into the book of *city*, plan once, and return the new book."""
    book = read(folder, city)
    dropped = set(book["dropped"])
    for each in changes:
        (dropped.discard if each["is_wanted"] else dropped.add)(each["stop"])
    found = plan(city.base, [stop for stop in city.stops if stop.name not in dropped], city.agents)
    known = sorted({*book["changes"], *(each["number"] for each in changes)})
    tours = [[stop.name for stop in tour] for tour in found.tours]
    new_book: Book = {"changes": known, "dropped": sorted(dropped), "tours": tours, "km": found.km}
    _write(folder, city, new_book)
    return new_book


def _write(folder: Path, city: City, book: Book) -> None:
    path = _path(folder, city)
    whole = path.with_suffix(f".{os.getpid()}")
    whole.write_text(json.dumps(book, ensure_ascii=False, indent=1), encoding="utf-8")
    whole.replace(path)  # who reads meanwhile sees the old book or the new one


def _path(folder: Path, city: City) -> Path:
    return folder / f"{city.name}.json"
