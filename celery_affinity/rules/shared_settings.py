"""The settings that all processes of a fleet share, as Redis has them: text by name, times in µs.

Each worker brings those of its app.conf when it joins (`shared`); arrows read the settings in force
(``lua/base/settings_in_force.lua``). Most can be changed at run time.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..clock import SECOND_US
from . import reserves, tenants
from .keyed import key_limits
from .keyed.key_limits import NONE
from .score import Weights
from .settings import HIGHER_FIRST, Settings
from .settings_by_name import Value, accepted_instead, number_or_text

#: Setting that the arrows read -> its name in Redis.
NAME_IN_REDIS = {
    each.name: each.name + each.metadata["in_redis"]
    for each in fields(Settings)
    if each.metadata["in_redis"] is not None
}

_BY_NAME_IN_REDIS = {name_in_redis: name for name, name_in_redis in NAME_IN_REDIS.items()}


def shared(settings: Settings) -> dict[str, str]:
    """Return what *settings* has for the arrows, by its name in Redis; times in µs."""
    order = settings.priority_order
    return {in_redis: to_redis(name, getattr(settings, name), order) for name, in_redis in NAME_IN_REDIS.items()}


def to_redis(name: str, value: Any, order: str = HIGHER_FIRST) -> str:
    """Return *value* of the setting *name*, of an app with this *order* of priorities, as the arrows read it."""
    if name == "limits":
        return key_limits.encoded(value)
    if name == "tenants":
        return tenants.encoded(value)
    if name == "reserve":
        return reserves.encoded(value, lower_first=order != HIGHER_FIRST)
    if NAME_IN_REDIS[name] != name:
        us = 0.0 if value in (None, NONE) else float(value) * SECOND_US
        return str(max(1, round(us)) if us else 0)  # 0 may be refused, or mean none
    if isinstance(value, bool):
        return str(int(value))
    return value if isinstance(value, str) else repr(value)


def from_redis(name: str, text: str, order: str = HIGHER_FIRST) -> Value:
    """Return the value that `to_redis` was given; limits, reserves and None as somebody would type them."""
    if name == "limits":
        return key_limits.shown(text) if key_limits.check(text) is None else text
    if name == "tenants":
        return tenants.shown(text) if tenants.check(text) is None else text
    if name == "reserve":
        return reserves.shown(text, lower_first=order != HIGHER_FIRST) if reserves.check(text) is None else text
    if name in ("reserve_patience", "key_patience") and text == "0":
        return NONE
    if name == "keep_failed":
        return {"0": False, "1": True}.get(text, text)
    value = number_or_text(text)
    return value / SECOND_US if NAME_IN_REDIS[name] != name and not isinstance(value, str) else value


def is_setting(name: str, text: str) -> bool:
    """Return whether *text* in Redis can be the value of the setting *name*."""
    return accepted_instead(name, from_redis(name, text)) is None


#: Setting, by its name in Redis -> its value while Redis has none. *priority_reversed*: whether priorities are read the
#: other way round, since ``priority_order`` was changed at run time. *revision*: grows with each change.
DEFAULTS = {**shared(Settings()), "priority_reversed": "0", "revision": "0"}


def complete(found: Mapping[str, str]) -> dict[str, str]:
    """Return *found*, settings by their name in Redis, with the default of each that is missing or has a bad value."""
    return {**DEFAULTS, **{name: text for name, text in found.items() if _is_value(name, text)}}


def _is_value(name_in_redis: str, text: str) -> bool:
    name = _BY_NAME_IN_REDIS.get(name_in_redis)
    is_whole = name is None or name_in_redis.endswith("_us")
    return (text.isdecimal() or not is_whole) and (name is None or is_setting(name, text))


def weights(found: Mapping[str, str]) -> Weights:
    """Return the coefficients of the score in *found*, which has settings by their name in Redis."""
    in_force = complete(found)
    return Weights(
        priority=float(in_force["priority_weight"]),
        age=float(in_force["age_weight"]),
        rarity=float(in_force["rarity_weight"]),
        on_demand=float(in_force["on_demand_weight"]),
        on_demand_age=float(in_force["on_demand_age_weight"]),
        on_demand_age_cap_us=int(in_force["on_demand_age_cap_us"]),
        priority_reversed=in_force["priority_reversed"] == "1",
    )


#: Settings that a claim needs, read at once; of all others an arrow needs one or two, if any.
FOR_A_CLAIM = (
    "priority_percentage",
    "priority_weight",
    "age_weight",
    "rarity_weight",
    "on_demand_weight",
    "on_demand_age_weight",
    "on_demand_age_cap_us",
    "rarity",
    "priority_reversed",
)
