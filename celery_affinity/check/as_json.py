"""The outcome of a check for other programs: the app, broker and workers that were asked, and the findings."""

from collections.abc import Iterable

from .facts import Facts, Fleet
from .finding import Finding


def as_json(facts: Facts, found: Iterable[Finding]) -> dict[str, object]:
    """Return the outcome of a check as `json.dumps` takes it."""
    return {
        "app": facts.app.name,
        "broker": facts.app.broker,
        "server": facts.server is not None,
        "workers": None if facts.fleet is None else _names(facts.fleet),
        "findings": [{"id": each.id, "level": each.level, "what": each.what, "todo": each.todo} for each in found],
    }


def _names(fleet: Fleet) -> list[str]:
    return sorted({*(each.name for each in fleet.members), *(each.name for each in fleet.answers)})
