"""The reasons why a pending job waits: what it waits for among the slots, and each rule that keeps it back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..clock import SECOND_US
from ..rules.encoding import decode
from ..server.backlogs import Lane
from ..server.reader import Command, Reader
from . import sentences
from .claim_order import Order, order_now
from .keyed import minimums
from .keyed.facts import facts_of, stated_in
from .keyed.turns import turn_of
from .keyed.waiting import KeyWait, waiting_for_key, why_kept_back
from .reserves import why_kept_back as why_kept_back_by_reserve
from .type_rules import Pause, limits_of, paused_types, pauses_of
from .waiting import Block, NotBefore, Waiting
from .waiting_for_slots import profiles_for, waiting_for_slots

#: Rules that a job meets before its key.
_BEFORE_KEYS = ("pause", "type limit")


def waiting_of(reader: Reader, lane: Lane, rules: str, now_us: int, settings: Mapping[str, str]) -> Waiting | None:
    """Return the reasons why a job waits; None if it is pending no longer.

    *lane*: the job's, with the job as head. *rules*: the field of its row.
    """
    stated = stated_in(rules)
    waited = _with_keys(reader, lane, [each.key for each in stated], now_us, settings)
    if waited is None or not stated or not stated[-1].is_of_tenant:
        return waited
    turn = turn_of(reader, stated[-1].key, lane)
    return waited if turn is None else replace(waited, turn=turn, bound_s=None, passed_until_s=None)


def _with_keys(reader: Reader, lane: Lane, keys: list[str], now_us: int, settings: Mapping[str, str]) -> Waiting | None:
    """Return what `waiting_of` does, without turns of tenants. *keys*: those of the job, encoded."""
    sublanes = {key: facts.sublanes for key, facts in facts_of(reader, keys).items()}
    profiles = profiles_for(reader, lane.type)
    candidates = sorted({lane.type, *(type_ for each in profiles for type_ in each.types)})
    types_of_keys = {each.type for lanes in sublanes.values() for each in lanes}
    order = order_now(reader, sorted({*candidates, *types_of_keys}), now_us, settings)
    competing = sorted({*candidates} - (paused_types(reader) - {lane.type}))
    lanes = [*reader.lanes(competing), *reader.kept_lanes(competing)]
    places = [lane, lane._replace(is_kept_back=True)]
    stands, kept_back = (at is not None for at in reader.ask([_place_in(reader, each) for each in places]))
    if not (stands or kept_back):
        return None
    waited_for_slots = _after_first(
        reader, order, lane, competing, waiting_for_slots(reader, order, lane, lanes, profiles, kept_back=kept_back)
    )
    waited_for_others = _reserved(reader, lane, settings, waited_for_slots)
    waited = _held_back(reader, lane.type, keys, waited_for_others)
    if not keys:
        return waited
    if not kept_back:
        return replace(waited, key=waiting_for_key(reader, order, keys[-1], sublanes[keys[-1]], lane))
    waits_for = keys[_passed(lane, list(sublanes.values())) :] or keys[-1:]
    key, *later = [waiting_for_key(reader, order, each, sublanes[each], lane) for each in waits_for]
    if key.key.tenant is not None and key.key.limit is None:
        return replace(waited, key=key)  # jobs of its tenant go before it, as they would in their lane
    is_paused = bool(pauses_of(reader, lane.type, waits_for[:1], of="key"))
    why = [] if is_paused and key.key.has_room else [why_kept_back(reader, key, sublanes[waits_for[0]], lane)]
    why += [why_kept_back(reader, each, (), lane) for each in later if not each.key.has_room]
    blocks = [Block("key" if key.key.tenant is None else "tenant", each) for each in why]
    return replace(
        waited,
        key=key,
        kept_back=True,
        blocked_by=sorted([*blocks, *waited.blocked_by], key=lambda each: each.rule not in _BEFORE_KEYS),
        bound_s=None,
        passed_until_s=None,
        estimate_s=None if waited.is_paused else key.estimate_s,
        not_before=waited.not_before if waited.is_paused else _time_of_retry(key),
        overdue_since_s=key.overdue_since_s,
    )


def _passed(lane: Lane, sublanes: Sequence[Sequence[Lane]]) -> int:
    """Return how many of its keys, whose *sublanes* these are, the job of *lane* stands for: it waits for the next."""
    mine = (lane.type, lane.name, lane.job_id)
    stands = [mine in ((each.type, each.name, each.job_id) for each in of_key) for of_key in sublanes]
    return (*stands, False).index(False)


def _time_of_retry(key: KeyWait) -> NotBefore | None:
    """Return when the retry is due that a key is kept for; None if it is due, or there is none."""
    due_s = key.key.kept_until_s
    return None if due_s is None else NotBefore(due_s, sentences.retry_is_due(key.key.kept_for))


def _end_of_pauses(found: Sequence[Pause]) -> NotBefore | None:
    """Return when the last of some pauses ends; None if one of them has no end."""
    ends = [(each.until, str(each)) for each in found if each.until is not None]
    if not ends or len(ends) < len(found):
        return None
    until_s, what = max(ends)
    return NotBefore(until_s, sentences.pause_ends(what))


def _reserved(reader: Reader, lane: Lane, settings: Mapping[str, str], waited: Waiting) -> Waiting:
    """Return *waited* with the reserve, if there is one, that keeps back the first job of *lane*."""
    live, free = (sum(getattr(each, name) for each in waited.slots) for name in ("slots", "free"))
    found = why_kept_back_by_reserve(reader, settings, lane, live, free)
    patience_s = int(settings["reserve_patience_us"]) / SECOND_US
    if found is None or waited.bound_s is None:
        return waited
    why, kept = found
    bound_s = None
    if patience_s:
        bound_s = max(waited.bound_s, patience_s + int(settings["heartbeat_interval_us"]) / SECOND_US)
    return replace(
        waited,
        blocked_by=[Block("reserve", why), *waited.blocked_by],
        bound_s=bound_s,
        passed_until_s=None if bound_s is None else lane.enqueued_us / SECOND_US + bound_s,
        estimate_s=None if waited.estimate_s is None else waited.estimate_s * live / max(1, live - kept),
    )


def _held_back(reader: Reader, type_: str, keys: Sequence[str], waited: Waiting) -> Waiting:
    """Return *waited* with the pauses and limits that concern a job of *type_* with *keys*; all encoded."""
    pauses = pauses_of(reader, type_, keys)
    blocks = [Block("pause", sentences.pause(each)) for each in pauses]
    limits = limits_of(reader, [type_])
    blocks += [
        Block("type limit", each.why, is_closed=not each.limit) for each in limits if each.counting or not each.room
    ]
    slots = sum(each.slots for each in waited.slots)
    estimate_s = waited.estimate_s
    for each in limits:  # no more slots help than may be used
        estimate_s = estimate_s * max(1.0, slots / each.limit) if estimate_s is not None and each.limit else None
    if not blocks:
        return replace(waited, estimate_s=estimate_s)
    return replace(
        waited,
        blocked_by=[*blocks, *waited.blocked_by],
        bound_s=None,
        passed_until_s=None,
        estimate_s=None if pauses else estimate_s,
        not_before=_end_of_pauses(pauses),
    )


def _place_in(reader: Reader, lane: Lane) -> Command:
    return "zscore", reader.lane_key(lane), lane.job_id


def _after_first(reader: Reader, order: Order, lane: Lane, types: Sequence[str], waited: Waiting) -> Waiting:
    """Return *waited*, changed by the waiting jobs of *types* (encoded) that go before all others, if there are any."""
    if not reader.first_lanes(types):
        return waited
    if minimums.goes_first(reader, lane):
        groups = minimums.first_ahead(reader, order, types, lane)
        return replace(
            waited,
            rank_in_type=1 + sum(group.jobs for group in groups if group.type == decode(lane.type)),
            rank=1 + sum(group.jobs for group in groups),
            ahead=groups,
            goes_first=True,
            bound_s=None,
            passed_until_s=None,
        )
    passing = minimums.passing(reader, order, types, lane)
    return replace(
        waited,
        rank_in_type=waited.rank_in_type + passing[lane.type],
        rank=waited.rank + passing.total(),
        passing=passing.total(),
        bound_s=None,
        passed_until_s=None,
    )
