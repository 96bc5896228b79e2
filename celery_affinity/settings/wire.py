"""Convert the settings shared by a fleet to and from their Redis form: strings by name, times in µs.

Each worker sends the settings of its ``app.conf`` when it joins (`shared_settings`). Server functions read the settings
in force (``lua/base/settings.lua``). Most settings can be changed at run time.

The overtaking bound is computed here too: only jobs enqueued less than `overtaking_seconds` after a job can overtake
it, regardless of the load. ``docs/explanation/scheduling.md`` has its conditions, ``docs/internals/proofs.md`` the
proof.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..clock import SECOND_US
from ..policy.score import Weights
from ..schema.constants import MAX_PRIORITY
from . import limits, reserves, tenants
from .limits import NONE
from .loader import Value, accepted_instead, number_or_text
from .table import HIGHER_FIRST, SHARE, Settings

#: Setting that server functions read -> its name in Redis.
NAME_IN_REDIS = {
    setting.name: setting.name + setting.metadata["in_redis"]
    for setting in fields(Settings)
    if setting.metadata["in_redis"] is not None
}

_BY_NAME_IN_REDIS = {name_in_redis: name for name, name_in_redis in NAME_IN_REDIS.items()}


def shared_settings(settings: Settings) -> dict[str, str]:
    """Return the settings for server functions, by Redis name. Times are in µs."""
    order = settings.priority_order
    return {in_redis: to_redis(name, getattr(settings, name), order) for name, in_redis in NAME_IN_REDIS.items()}


def to_redis(name: str, value: Any, order: str = HIGHER_FIRST) -> str:
    """Return *value* of the setting *name* in Redis form, for an app with this *order* of priorities."""
    if name == "limits":
        return limits.encoded_limits(value)
    if name == "tenants":
        return tenants.encoded_tenants(value)
    if name == "reserve":
        return reserves.encoded_reserves(value, lower_first=order != HIGHER_FIRST)
    if NAME_IN_REDIS[name] != name:
        us = 0.0 if value in (None, NONE) else float(value) * SECOND_US
        return str(max(1, round(us)) if us else 0)  # the setting may refuse 0, or 0 may mean None
    if isinstance(value, bool):
        return str(int(value))
    return value if isinstance(value, str) else repr(value)


def from_redis(name: str, text: str, order: str = HIGHER_FIRST) -> Value:
    """Return the value that `to_redis` converted. Limits, reserves and None are in typed form."""
    if name == "limits":
        return limits.shown_limits(text) if limits.check_limits(text) is None else text
    if name == "tenants":
        return tenants.shown_tenants(text) if tenants.check_tenants(text) is None else text
    if name == "reserve":
        return (
            reserves.shown_reserves(text, lower_first=order != HIGHER_FIRST)
            if reserves.check_reserves(text) is None
            else text
        )
    if name in ("reserve_patience", "key_patience") and text == "0":
        return NONE
    if name == "keep_failed":
        return {"0": False, "1": True}.get(text, text)
    value = number_or_text(text)
    return value / SECOND_US if NAME_IN_REDIS[name] != name and not isinstance(value, str) else value


def is_setting(name: str, text: str) -> bool:
    """Return True if *text*, in Redis form, is a valid value of the setting *name*."""
    return accepted_instead(name, from_redis(name, text)) is None


#: Redis name -> default value. *priority_reversed*: 1 if ``priority_order`` was changed at run time, so that 0 is
#: the highest. *revision*: grows with each change.
DEFAULTS = {**shared_settings(Settings()), "priority_reversed": "0", "revision": "0"}


def complete_settings(stored: Mapping[str, str]) -> dict[str, str]:
    """Return *stored* settings by Redis name, with the default for each missing or invalid value."""
    return {**DEFAULTS, **{name: text for name, text in stored.items() if _is_value(name, text)}}


def _is_value(name_in_redis: str, text: str) -> bool:
    name = _BY_NAME_IN_REDIS.get(name_in_redis)
    is_whole = name is None or name_in_redis.endswith("_us")
    return (text.isdecimal() or not is_whole) and (name is None or is_setting(name, text))


def weights_of(stored: Mapping[str, str]) -> Weights:
    """Return the score's coefficients from *stored* settings by Redis name."""
    in_force = complete_settings(stored)
    return Weights(
        priority=float(in_force["priority_weight"]),
        age=float(in_force["age_weight"]),
        rarity=float(in_force["rarity_weight"]),
        on_demand=float(in_force["on_demand_weight"]),
        on_demand_age=float(in_force["on_demand_age_weight"]),
        on_demand_age_cap_us=int(in_force["on_demand_age_cap_us"]),
        priority_reversed=in_force["priority_reversed"] == "1",
    )


#: Settings that every claim needs, read with one command. Other server functions need at most one or two.
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


def bonus_seconds_in(settings: Mapping[str, str]) -> float:
    """Return the maximum points of a job on a worker that holds its hint, 0 if tenants have fair shares.

    *settings*: all settings in force, with defaults.
    """
    return 0.0 if settings["tenant_turns"] == SHARE else float(settings["locality_bonus"])


def overtaking_seconds(priority: int, on_demand: bool, weights: Weights, *, bonus: float = 0.0) -> float:
    """Return D: a job enqueued D or more seconds after this job never runs before it.

        D = (Wp * (10 - priority) + Wr + bonus + (queued: Wo + Wa * cap)) / W

    with Wp, Wr, Wo, Wa and W the weights of priority, rarity, on-demand, on-demand age, and age. *bonus*: see
    `bonus_seconds_in`.
    """
    lead = weights.priority * (MAX_PRIORITY - weights.read(priority)) + weights.rarity + bonus
    if not on_demand:
        lead += weights.on_demand + weights.on_demand_age * weights.on_demand_age_cap_us / SECOND_US
    return lead / weights.age
