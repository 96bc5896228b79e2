"""Reserves as limits: a job of a class starts only if few enough matching slots are then in use."""

from celery_affinity.settings.reserves import Reserve, parse_reserves

from .fleet import MEMBERS

#: Slots of a whole fleet, by type.
SLOTS_OF = {
    type_: sum(member.slots for member in MEMBERS if type_ in member.types)
    for type_ in {each for member in MEMBERS for each in member.types}
}


def highest(text: str) -> dict[str, int]:
    """Map each class in the setting *text* to the maximum number of used matching slots after a start in the class.

    The reserves of the storms are smaller than the slots of each type.
    """
    return {
        f"reserve:{each.pattern}:{each.of_class}": SLOTS_OF[each.pattern] - each.slots(SLOTS_OF[each.pattern])
        for each in parse_reserves(text)
    }


def serves(member: str | None, type_: str) -> bool:
    """Return True if the worker *member* of the fleet serves a type."""
    return any(each.name == member and type_ in each.types for each in MEMBERS)


def of_name(name: str) -> Reserve:
    """Return the reserve for a *name* of `highest`."""
    (reserve,) = parse_reserves(f"{name.removeprefix('reserve:')}=1")
    return reserve
