"""Convert every report to JSON, for the commands' ``--json`` and other programs. New reports need no code here."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

#: A value that `json.dumps` accepts. With a recursive type, each caller would have to prove it.
Json = object

#: Fields that a report has only if it covers several cohorts.
OF_COHORTS = ("cohort", "down")


def as_json(report: object) -> Json:
    """Return *report*, a report or a part of it, as a value for `json.dumps`.

    A dataclass becomes a dict of its fields in order, followed by its public properties.
    """
    if is_dataclass(report):
        names = [*(field_.name for field_ in fields(report)), *properties_of(type(report))]
        values = {name: getattr(report, name) for name in names}
        return {name: as_json(value) for name, value in values.items() if value is not None or name not in OF_COHORTS}
    if isinstance(report, Mapping):
        return {name: as_json(value) for name, value in report.items()}
    if isinstance(report, (list, tuple)):
        return [as_json(item) for item in report]
    return report


def properties_of(report_type: type) -> list[str]:
    """Return the names of a report's public properties."""
    return [
        name for name, member in vars(report_type).items() if isinstance(member, property) and not name.startswith("_")
    ]


def waited_s(
    state: str, enqueued_s: float | None, due_s: float | None, claimed_s: float | None, ended_s: float | None
) -> float | None:
    """Return the seconds from the ETA or enqueue time to the last claim, or to the end of an unclaimed job.

    All times are Unix times or None.
    """
    if state in ("scheduled", "pending"):  # it may have been claimed before a requeue
        return None
    return _between(due_s or enqueued_s, claimed_s or ended_s)


def ran_s(claimed_s: float | None, started_s: float | None, ended_s: float | None) -> float | None:
    """Return the seconds from the start, or from the claim if the start is unknown (short jobs), to the end."""
    return _between(started_s or claimed_s, ended_s if claimed_s else None)


def _between(from_s: float | None, to_s: float | None) -> float | None:
    return None if from_s is None or to_s is None else max(0.0, to_s - from_s)
