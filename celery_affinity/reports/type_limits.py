"""Rules that hold back whole types, or a key: pauses, and limits of the jobs of a type that run together."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..clock import SECOND_US
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Reader
from ..schema.keys import ALL, Kind, key_address, parts_of, type_address
from ..schema.values import decode_part, encode_part
from . import sentences
from .keys import encoded_name


@dataclass(frozen=True)
class PauseInForce(CohortRow):
    """What is paused: the type or key *name*, or all types. Times are Unix times, s; *until* None: no end."""

    kind: Kind
    name: str
    since: float
    until: float | None
    why: str

    def __str__(self) -> str:
        return {"type": f"type {self.name!r}", "key": f"key {self.name!r}", "all": "all types"}[self.kind]

    @property
    def verb(self) -> str:
        return "are" if self.kind == "all" else "is"


@dataclass(frozen=True)
class TypeLimit:
    """A limit of the jobs of *type* that run together. *counting*: claims from before the limit are counted still."""

    type: str
    limit: int
    running: int
    counting: bool

    @property
    def room(self) -> int:
        """How many jobs of the type more may run."""
        return max(0, self.limit - self.running)

    @property
    def why(self) -> str:
        """Why no job of the type may start, in words."""
        return sentences.type_limit_sentence(self)


def pause_address(kind: Kind, name: str) -> str:
    """Return what the arrows call the type or key *name*, or all types. Raises OptionError for what is no key."""
    if kind == "all":
        return ALL
    return key_address(encoded_name(name)) if kind == "key" else type_address(encode_part(name))


def has_no_pause(kind: Kind, name: str) -> str:
    """Return what somebody is told who ends a pause that does not exist."""
    return sentences.no_pause_sentence("all types" if kind == "all" else str(PauseInForce(kind, name, 0, None, "")))


def is_without_effect(reader: Reader, kind: Kind, name: str) -> str | None:
    """Return a warning if *name* is a type that no live worker serves: its pause may be meant for another type."""
    if kind != "type":
        return None
    served = {decode_part(each) for each in reader.capacity()}
    return None if name in served else sentences.pause_without_effect_sentence(name, served)


def pauses_in_force(reader: Reader) -> list[PauseInForce]:
    """Return all pauses, the oldest first. One that cannot be read is left out."""
    found = (_pause(what, words) for what, words in reader.large_hash("pauses").items())
    return sorted((each for each in found if each), key=lambda each: each.since)


def _pause(what: str, words: str) -> PauseInForce | None:
    said = re.match(r"(\d+) (\d+) (.*)", words, re.DOTALL)
    if not said:
        return None
    kind, name = parts_of(what)
    until_us = int(said[2])
    return PauseInForce(
        kind,
        decode_part(name),
        int(said[1]) / SECOND_US,
        until_us / SECOND_US if until_us else None,
        said[3],
    )


def paused_types(reader: Reader) -> set[str]:
    """Return the types that are paused by name, encoded."""
    return {encode_part(each.name) for each in pauses_in_force(reader) if each.kind == "type"}


def pauses_of_job(reader: Reader, type_: str, keys: Sequence[str], of: Kind | None = None) -> list[PauseInForce]:
    """Return the pauses that concern a job of *type_* with *keys*, all encoded; *of*: only those of this kind."""
    names = [ALL, type_address(type_), *map(key_address, keys)]
    found = (_pause(what, words) for what, words in reader.fields("pauses", names).items())
    return [each for each in found if each and of in (None, each.kind)]


def limits_of_types(reader: Reader, types: Sequence[str]) -> list[TypeLimit]:
    """Return the limits of those of *types*, encoded, that have one."""
    return _limits_in(reader, reader.fields("type_rules", types))


def all_limits(reader: Reader) -> list[TypeLimit]:
    """Return the limits of all types that have one, by name."""
    return sorted(_limits_in(reader, reader.large_hash("type_rules")), key=lambda each: each.type)


def _limits_in(reader: Reader, rules: Mapping[str, str]) -> list[TypeLimit]:
    limits = {type_: int(said[1]) for type_, words in rules.items() if (said := re.match(r"limit=(\d+)", words))}
    running = reader.ask([("zcard", reader.key("limited", type_)) for type_ in limits])
    return [
        TypeLimit(decode_part(type_), limit, int(str(count)), "counting" in rules[type_])
        for (type_, limit), count in zip(limits.items(), running, strict=True)
    ]
