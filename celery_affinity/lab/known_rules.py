"""What the twin knows of a scenario's rules, and what it leaves to the judge."""

from collections.abc import Mapping

from ..rules.addresses import OF_TYPE
from ..rules.keyed import key_limits
from ..rules.protocol import MOST_CHOSEN_FROM, MOST_COMPARED, MOST_OPENED
from ..rules.settings import SHARE
from ..rules.shared_settings import complete
from ..rules.tenants import quotas_in
from .binding_keys import KeySettings
from .scenario import Arrival, Scenario


def unknown_rule(scenario: Scenario) -> str | None:
    """Return a sentence that names a rule of *scenario* which the twin does not know; None if it knows all.

    Raises OptionError for a job whose limit or rate is none.
    """
    settings = complete(scenario.settings)
    if settings["reserve"].strip():
        return _sentence("a reserve (the setting 'reserve')")
    if any(quota.min for quota in quotas_in(settings["tenants"]).values()):
        return _sentence("a minimum of a tenant (the setting 'tenants')")
    has_shares = settings["tenant_turns"] == SHARE
    keys = KeySettings(settings["limits"], settings["tenants"])
    sublanes: dict[str, set[tuple[str, bool, int]]] = {}
    for arrival in scenario.arrivals:
        if rule := _rule_of(arrival, has_shares, keys, sublanes):
            return _sentence(f"{rule}, which job {arrival.number} has")
    return _too_wide(scenario)


def _rule_of(
    arrival: Arrival, has_shares: bool, keys: KeySettings, sublanes: dict[str, set[tuple[str, bool, int]]]
) -> str | None:
    """Return the rule of *arrival* that the twin does not know. *sublanes*: of each key, the lanes of those before."""
    if arrival.merge is not None:
        return "merging"
    if has_shares and arrival.tenant is not None:
        return "a share of a tenant"
    if arrival.exclusive is arrival.rate is arrival.tenant is None:
        return None
    found = keys.of(arrival)
    if len(found) > 1:
        return "two keys at once (exclusive, rate, or a tenant with a maximum)"
    for each in found:
        its = sublanes.setdefault(each.name, set())
        its.add((arrival.type, arrival.on_demand, arrival.priority))
        if len(its) > MOST_OPENED:
            return f"a key with more than {MOST_OPENED} types, modes and priorities"
    return None


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
