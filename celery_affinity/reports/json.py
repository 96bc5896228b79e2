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
