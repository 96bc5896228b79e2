"""Bounds of overtaking per type, as a metric."""

import math

from ..clock import SECOND_US
from ..scheduler.reader import Lane, Reader
from ..schema.values import decode_part
from ..settings import wire
from ..settings.wire import complete_settings, weights_of
from .status import Status
from .tenants import generation_in


def overtaking_bounds(reader: Reader, status: Status) -> dict[str, float]:
    """Return, by type with pending jobs, the highest overtaking bound of its jobs, in seconds.

    Infinite while a rule lets any job overtake one of them: a pause, a limit of the type, a key, a reserve without
    patience, a tenant below its minimum, or fair shares of tenants.
    """
    stored = reader.hash("settings")
    settings = complete_settings(stored)
    in_force, bonus = weights_of(settings), wire.bonus_seconds_in(settings)
    lanes = reader.lanes()
    with_turns = _types_with_turns(reader, generation_in(stored.get("shares", "")), lanes)
    any_below_minimum = any(tenant.is_below_minimum for tenant in status.tenants)
    status_by_type = {row.type: row for row in status.types}
    bounds_s: dict[str, float] = {}
    for lane in lanes:
        type_ = decode_part(lane.type)
        bound_s = wire.overtaking_seconds(lane.priority, lane.on_demand, in_force, bonus=bonus)
        bounds_s[type_] = max(bound_s, bounds_s.get(type_, 0.0))
    for type_ in {*bounds_s, *(row.type for row in status.types if row.pending)}:
        row = status_by_type.get(type_)
        is_blocked = row and row.pending and (row.paused or row.kept_back or row.kept_back_by_limit)
        if any_below_minimum or type_ in with_turns or is_blocked:
            bounds_s[type_] = math.inf
        elif row and row.kept_back_by_reserves:
            patience_us = int(settings["reserve_patience_us"])
            late_s = (patience_us + int(settings["heartbeat_interval_us"])) / SECOND_US
            bounds_s[type_] = max(bounds_s.get(type_, 0.0), late_s if patience_us else math.inf)
    return bounds_s


def _types_with_turns(reader: Reader, generation: str | None, lanes: list[Lane]) -> set[str]:
    """Return the types whose lanes have jobs of tenants that take turns by shares."""
    if generation is None or not lanes:
        return set()
    replies = reader.ask([("exists", reader.key("turns", lane.type, lane.name, generation)) for lane in lanes])
    return {decode_part(lane.type) for lane, has_turns in zip(lanes, replies, strict=True) if has_turns}
