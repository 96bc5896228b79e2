"""Report the pauses of types and keys, and the limits on running jobs of types."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..clock import SECOND_US
from ..options.type_names import did_you_mean
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Reader
from ..scheduler.scheduler import Scheduler
from ..schema.keys import ALL, Kind, key_address, parts_of, type_address
from ..schema.values import decode_part, encode_part
from .keys import encoded_name
from .render import time_text
from .report import Answer, Source, report


@dataclass(frozen=True)
class PauseInForce(CohortRow):
    """A pause of the type or key *name*, or of all types. Times are Unix times. *until*: None without an end."""

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
    """A limit on the running jobs of *type*.

    *counting*: True while claims from before the limit are still being counted.
    """

    type: str
    limit: int
    running: int
    counting: bool

    @property
    def room(self) -> int:
        """Number of jobs of the type that can still start."""
        return max(0, self.limit - self.running)

    @property
    def why(self) -> str:
        """Why no job of the type can start, as text."""
        if self.counting:
            return f"a new limit of type {self.type!r}: the jobs that run are counted"
        if not self.limit:
            return f"type {self.type!r} is closed: its limit is 0"
        return f"type {self.type!r}: {self.running} run, and {self.limit} may"


def pause_address(kind: Kind, name: str) -> str:
    """Return the Redis name of the type or key *name*, or of all types. Raises OptionError for an invalid key."""
    if kind == "all":
        return ALL
    return key_address(encoded_name(name)) if kind == "key" else type_address(encode_part(name))


def has_no_pause(kind: Kind, name: str) -> str:
    """Return the reply to a user who ends a pause that does not exist."""
    return f"there is no pause of {PauseInForce(kind, name, 0, None, '')}"


def is_without_effect(reader: Reader, kind: Kind, name: str) -> str | None:
    """Return a warning if *name* is a type that no live worker serves. The pause may be meant for another type."""
    if kind != "type":
        return None
    served = {decode_part(type_) for type_ in reader.capacity()}
    return None if name in served else f"no live worker serves type {name!r}{did_you_mean(name, served)}"


def pauses_in_force(reader: Reader) -> list[PauseInForce]:
    """Return all readable pauses, the oldest first."""
    pauses = (_pause(address, value) for address, value in reader.large_hash("pauses").items())
    return sorted((pause for pause in pauses if pause), key=lambda pause: pause.since)


def _pause(address: str, value: str) -> PauseInForce | None:
    match = re.match(r"(\d+) (\d+) (.*)", value, re.DOTALL)
    if not match:
        return None
    kind, name = parts_of(address)
    since_s, until_s = int(match[1]) / SECOND_US, int(match[2]) / SECOND_US
    return PauseInForce(kind, decode_part(name), since_s, until_s or None, match[3])


def paused_addresses(reader: Reader) -> frozenset[str]:
    """Return the addresses (`pause_address`) of all readable pauses."""
    pauses = reader.large_hash("pauses")
    return frozenset(address for address, value in pauses.items() if _pause(address, value))


def paused_types(reader: Reader) -> set[str]:
    """Return the types that are paused by name, encoded."""
    return {encode_part(pause.name) for pause in pauses_in_force(reader) if pause.kind == "type"}


def pauses_of_job(reader: Reader, type_: str, keys: Sequence[str], of: Kind | None = None) -> list[PauseInForce]:
    """Return the pauses of a job of *type_* with *keys*, all encoded. *of*: only pauses of this kind."""
    names = [ALL, type_address(type_), *map(key_address, keys)]
    pauses = (_pause(address, value) for address, value in reader.fields("pauses", names).items())
    return [pause for pause in pauses if pause and of in (None, pause.kind)]


def limits_of_types(reader: Reader, types: Sequence[str]) -> list[TypeLimit]:
    """Return the limits of *types* (encoded). Unlimited types are omitted."""
    return _limits_in(reader, reader.fields("type_rules", types))


def all_limits(reader: Reader) -> list[TypeLimit]:
    """Return all limits of types, sorted by name."""
    return sorted(_limits_in(reader, reader.large_hash("type_rules")), key=lambda limit: limit.type)


def _limits_in(reader: Reader, rules: Mapping[str, str]) -> list[TypeLimit]:
    limits = {type_: int(match[1]) for type_, rule in rules.items() if (match := re.match(r"limit=(\d+)", rule))}
    running = reader.ask([("zcard", reader.key("type_running", type_)) for type_ in limits])
    return [
        TypeLimit(decode_part(type_), limit, int(str(count)), "counting" in rules[type_])
        for (type_, limit), count in zip(limits.items(), running, strict=True)
    ]


def pauses_text(pauses: Sequence[PauseInForce]) -> str:
    return "\n".join(map(pause_line, pauses)) if pauses else "nothing is paused"


def pause_line(pause: PauseInForce) -> str:
    """Return a pause as one line."""
    until = "" if pause.until is None else f"; until {time_text(pause.until)}"
    why = f": {pause.why}" if pause.why else ""
    where = f" in cohort {pause.cohort}" if pause.cohort else ""
    return f"paused: {pause}{where} since {time_text(pause.since)}{why}{until}"


@report("pause", "/api/pauses", "Pauses of types, keys and all types", text=pauses_text)
def pauses(source: Source) -> Answer[list[PauseInForce]]:
    """List the pauses."""
    return source.rows(pauses_of_cohort)


def pauses_of_cohort(scheduler: Scheduler) -> list[PauseInForce]:
    return pauses_in_force(scheduler.reader)
