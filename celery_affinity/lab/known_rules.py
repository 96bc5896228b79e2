"""What the twin knows of a scenario's rules, and what it leaves to the judge."""

from collections.abc import Mapping

from ..rules.addresses import OF_TYPE
from ..rules.keyed import key_limits
from ..rules.protocol import MOST_CHOSEN_FROM, MOST_COMPARED
from ..rules.shared_settings import complete
from .scenario import Arrival, Scenario

#: Setting of tenants by shares, which an app.conf has and Redis has not: a scenario may name it.
TENANT_TURNS = "tenant_turns"


def unknown_rule(scenario: Scenario) -> str | None:
    """Return a sentence that names a rule of *scenario* which the twin does not know; None if it knows all."""
    settings = complete(scenario.settings)
    if settings["reserve"].strip():
        return _sentence("a reserve (the setting 'reserve')")
    has_quotas = bool(settings["tenants"].strip()) or scenario.settings.get(TENANT_TURNS) == "share"
    for arrival in scenario.arrivals:
        if rule := _rule_of(arrival, has_quotas):
            return _sentence(f"{rule}, which job {arrival.number} has")
    return _too_wide(scenario)


def _rule_of(arrival: Arrival, has_quotas: bool) -> str | None:
    if arrival.exclusive is not None:
        return "an exclusive key"
    if arrival.rate is not None:
        return "a rate"
    if arrival.merge is not None:
        return "merging"
    return "a quota or a share of a tenant" if has_quotas and arrival.tenant is not None else None


def _too_wide(scenario: Scenario) -> str | None:
    profiles = {frozenset(each.types) for each in scenario.workers}
    if any(len(types) > MOST_CHOSEN_FROM for types in profiles):
        return _sentence(f"workers that serve more than {MOST_CHOSEN_FROM} types")
    if len(profiles) > MOST_COMPARED:
        return _sentence(f"more than {MOST_COMPARED} sets of types that workers serve")
    return None


def _sentence(rule: str) -> str:
    return f"the fast engine does not know {rule}: --engine judge schedules this"


def limits_of_types(text: str) -> Mapping[str, int]:
    """Return the limits of types that the setting ``limits``, as Redis has it, says."""
    limits = key_limits.typed(text) or {}
    return {
        pattern.removeprefix(OF_TYPE): limit
        for pattern, limit in limits.items()
        if pattern.startswith(OF_TYPE) and isinstance(limit, int)
    }
