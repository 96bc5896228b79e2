"""Changes of settings that `advise` tries: a few, each of which somebody would try by hand."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..rules.addresses import OF_TYPE
from ..rules.keyed import key_limits
from ..rules.shared_settings import complete
from .known_rules import limits_of_types
from .scenario import Scenario

#: By how much the weight of users' calls is multiplied.
_ON_DEMAND_TIMES = (4, 16)

#: Shares of the slots of a type to which the type is limited, so that other types find free ones.
_LIMITED_TO = (0.75, 0.5)

#: Types with the most jobs, of which limits are tried.
_MOST_TYPES = 3


@dataclass(frozen=True)
class Tried:
    """*words*: the change as `affinity settings set` takes it, "" for none. *settings*: by their name in Redis."""

    words: str
    settings: Mapping[str, str] = field(hash=False, compare=False)


def to_try(scenario: Scenario) -> list[Tried]:
    """Return the changes that are tried on *scenario*."""
    return [*_on_demand(scenario), *_limits(scenario)]


def _on_demand(scenario: Scenario) -> list[Tried]:
    if not 0 < sum(each.on_demand for each in scenario.arrivals) < len(scenario.arrivals):
        return []
    weight = float(complete(scenario.settings)["on_demand_weight"]) or 4096.0
    heavier = [f"{weight * times:g}" for times in _ON_DEMAND_TIMES]
    return [Tried(f"on_demand_weight {each}", {"on_demand_weight": each}) for each in heavier]


def _limits(scenario: Scenario) -> list[Tried]:
    """Return limits of types: those that there are, taken off; and one for each of the types with the most jobs."""
    text = complete(scenario.settings)["limits"]
    words, found = key_limits.typed(text) or {}, []
    numbers: dict[str, int] = {}
    for each in scenario.arrivals:
        numbers[each.type] = numbers.get(each.type, 0) + 1
    for type_ in limits_of_types(text):
        less = {pattern: limit for pattern, limit in words.items() if pattern != OF_TYPE + type_}
        found.append(_limited(less))
    for type_ in sorted(numbers, key=lambda each: (-numbers[each], each))[:_MOST_TYPES] if len(numbers) > 1 else ():
        slots = sum(each.slots for each in scenario.workers if type_ in each.types)
        for share in _LIMITED_TO:
            limit = max(1, round(share * slots))
            if OF_TYPE + type_ not in words and limit < slots:
                found.append(_limited({**words, OF_TYPE + type_: limit}))
    return found


def _limited(limits: Mapping[str, key_limits.Limit]) -> Tried:
    return Tried(
        f"limits '{key_limits.shown(limits)}'", {"limits": key_limits.encoded(limits) or key_limits.NONE_AT_RUN_TIME}
    )
