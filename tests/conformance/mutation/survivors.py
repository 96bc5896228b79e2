"""The accepted survivors in `survivors.toml`: equivalent mutants, or classes of them, with the reasons."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_name("survivors.toml")


class Accepted(NamedTuple):
    """Mutants that are accepted for one *reason*: by *keys*, or by the pattern *matching* for the whole key."""

    reason: str
    keys: frozenset[str] = frozenset()
    matching: re.Pattern[str] | None = None

    def has(self, key: str) -> bool:
        """Return True if the mutant with *key* is accepted."""
        return key in self.keys or (self.matching is not None and self.matching.fullmatch(key) is not None)


def parsed(text: str) -> tuple[Accepted, ...]:
    """Return the accepted mutants in the list *text*. Raise ValueError for an incomplete row."""
    found = []
    for row in tomllib.loads(text)["accepted"]:
        if row.keys() - {"reason", "keys", "matching"} or not row.get("reason") or len(row) != 2:
            raise ValueError(f"a row has a reason, and either keys or matching, not: {row}")
        matching = re.compile(row["matching"]) if "matching" in row else None
        found.append(Accepted(row["reason"], frozenset(row.get("keys", ())), matching))
    return tuple(found)


@cache
def accepted() -> tuple[Accepted, ...]:
    """Return the accepted mutants in the checked-in list."""
    return parsed(LIST.read_text())


def reason_for(key: str) -> str:
    """Return the reason to accept the mutant with *key*, or ""."""
    return next((row.reason for row in accepted() if row.has(key)), "")
