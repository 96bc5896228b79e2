"""Reserves as limits: a job of a class starts only if at most so many of the slots that fit have jobs then."""

from celery_affinity.settings.reserves import Reserve, parse_reserves

from .fleet import MEMBERS

#: Slots of a whole fleet, by type.
SLOTS_OF = {
    type_: sum(member.slots for member in MEMBERS if type_ in member.types)
    for type_ in {each for member in MEMBERS for each in member.types}
}


def highest(text: str) -> dict[str, int]:
    """Return, for each class in *text*, the setting, how many slots that fit have jobs once one of the class starts.

    The reserves of the storms are smaller than the slots of each type.
    """
    return {
        f"reserve:{each.pattern}:{each.of_class}": SLOTS_OF[each.pattern] - each.slots(SLOTS_OF[each.pattern])
        for each in parse_reserves(text)
    }


def serves(member: str | None, type_: str) -> bool:
    """Return whether a worker of the fleet, by name, serves a type."""
    return any(each.name == member and type_ in each.types for each in MEMBERS)


def of_name(name: str) -> Reserve:
    """Return the reserve of which `highest` has the *name*."""
    (reserve,) = parse_reserves(f"{name.removeprefix('reserve:')}=1")
    return reserve
