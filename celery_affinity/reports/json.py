"""One JSON form of every report, for the commands' ``--json`` and other programs. A new report needs no code here.

How long a job waited and ran, as far as its times are known. All times are Unix times; None: unknown.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

#: A value that `json.dumps` accepts. A recursive type would say more, but each caller would have to prove it.
Json = object

#: Fields that a report has only if it is about more than one cohort.
OF_COHORTS = ("cohort", "down")


def as_json(found: object) -> Json:
    """Return *found*, a report or a list of parts of a report, as a value for `json.dumps`.

    A dataclass becomes a dict of the fields in their order, then of the public properties: metrics that follow from the
    fields.
    """
    if is_dataclass(found):
        names = [*(each.name for each in fields(found)), *properties_of(type(found))]
        values = {name: getattr(found, name) for name in names}
        return {name: as_json(value) for name, value in values.items() if value is not None or name not in OF_COHORTS}
    if isinstance(found, Mapping):
        return {name: as_json(value) for name, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [as_json(each) for each in found]
    return found


def properties_of(of: type) -> list[str]:
    """Return the names of the public properties of a report."""
    return [name for name, each in vars(of).items() if isinstance(each, property) and not name.startswith("_")]


def waited_s(
    state: str, enqueued_s: float | None, due_s: float | None, claimed_s: float | None, ended_s: float | None
) -> float | None:
    """Return the time from the ETA, or the enqueue time, to the last claim, or to the end of a job that had none."""
    if state in ("scheduled", "pending"):  # it may have come back from a claim
        return None
    return _between(due_s or enqueued_s, claimed_s or ended_s)


def ran_s(claimed_s: float | None, started_s: float | None, ended_s: float | None) -> float | None:
    """Return the time from the start to the end; from the claim if the start is unknown, as that of short jobs is."""
    return _between(started_s or claimed_s, ended_s if claimed_s else None)


def _between(from_s: float | None, to_s: float | None) -> float | None:
    return None if from_s is None or to_s is None else max(0.0, to_s - from_s)
