"""How much is measured, and of what."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .results import Subject

S = TypeVar("S", bound=Subject)


@dataclass(frozen=True)
class Options:
    """*only*: words of the names of subjects. *before*: another checkout, measured as well. *server*: an executable."""

    parts: tuple[str, ...]
    rounds: int
    drain_tasks: int
    publish_tasks: int
    every_variant: bool
    only: tuple[str, ...] = ()
    before: Path | None = None
    server: str | None = None

    def chosen(self, subjects: Sequence[S]) -> list[S]:
        """Return the subjects whose names have all the words."""
        return [each for each in subjects if set(self.only) <= set(each.name.replace(",", " ").split())]


FULL = Options(
    parts=("publish", "drain"),
    rounds=5,
    drain_tasks=6000,
    publish_tasks=2000,
    every_variant=True,
)

QUICK = Options(
    parts=("publish", "drain"),
    rounds=3,
    drain_tasks=1500,
    publish_tasks=1000,
    every_variant=False,
)
