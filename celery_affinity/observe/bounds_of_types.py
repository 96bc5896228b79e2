"""How much younger a job may be that passes a pending job, by type: the overtaking bound, as rules leave it."""

import math

from ..clock import SECOND_US
from ..rules import overtaking
from ..rules.encoding import decode
from ..rules.shared_settings import complete, weights
from ..server.backlogs import Lane
from ..server.reader import Reader
from .keyed.turns import era_in
from .status import Status
from .type_status import TypeStatus


def bounds_of_types(reader: Reader, status: Status) -> dict[str, float]:
    """Return, by type with pending jobs, the overtaking bound of the jobs that it bounds least, s.

    Infinite while a rule lets any job pass one of them: a pause, a limit of the type, a key, a reserve without
    patience, a tenant below its minimum, shares of tenants.
    """
    as_written = reader.hash("settings")
    settings = complete(as_written)
    in_force, bonus = weights(settings), overtaking.bonus_in(settings)
    lanes = reader.lanes()
    by_turns = _types_with_turns(reader, era_in(as_written.get("shares", "")), lanes)
    goes_first = any(each.is_below_minimum for each in status.tenants)
    known = {each.type: each for each in status.types}
    found: dict[str, float] = {}
    for lane in lanes:
        type_ = decode(lane.type)
        bound_s = overtaking.seconds(lane.priority, lane.on_demand, in_force, bonus=bonus)
        found[type_] = max(bound_s, found.get(type_, 0.0))
    for type_ in {*found, *(each.type for each in status.types if each.pending)}:
        its = known.get(type_)
        if goes_first or type_ in by_turns or (its and _any_may_pass(its)):
            found[type_] = math.inf
        elif its and its.kept_back_by_reserves:
            patience_us = int(settings["reserve_patience_us"])
            late_s = (patience_us + int(settings["heartbeat_interval_us"])) / SECOND_US
            found[type_] = max(found.get(type_, 0.0), late_s if patience_us else math.inf)
    return found


def _any_may_pass(its: TypeStatus) -> bool:
    return its.pending > 0 and (its.paused or its.kept_back > 0 or its.kept_back_by_limit > 0)


def _types_with_turns(reader: Reader, era: str | None, lanes: list[Lane]) -> set[str]:
    """Return the types in whose lanes jobs of tenants take turns by shares."""
    if era is None or not lanes:
        return set()
    found = reader.ask([("exists", reader.key("turns", each.type, each.name, era)) for each in lanes])
    return {decode(lane.type) for lane, has_turns in zip(lanes, found, strict=True) if has_turns}
