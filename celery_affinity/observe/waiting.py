"""Why a pending job waits: its score, the jobs before it, the slots that fit, and a guess at the wait to come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..rules import overtaking
from ..rules.keys import decode, encode, unmarked
from ..rules.rows import number_of, text_of
from ..rules.score import MICRO
from ..server.reader import Lane, Reader
from .claim_order import Group, Order, ahead, order_now


@dataclass(frozen=True)
class Points:
    """The terms of a score, in points. *slots_that_fit*: the divisor of rarity; 0 if no live worker serves the type."""

    priority: float
    age: float
    rarity: float
    on_demand: float
    total: float
    slots_that_fit: int


@dataclass(frozen=True)
class Slots:
    """The slots of the workers that serve just *types*. *free* leaves out a draining worker, even an idle one."""

    types: list[str]
    workers: int
    slots: int
    free: int


@dataclass(frozen=True)
class Waiting:
    """Why a pending job waits.

    *rank_in_type*, *rank*: the job's place among the jobs of its type, and among all that its slots could take; 1 is
    next. *ahead*: the jobs before it, by type, mode and priority. *bound_s*: only jobs published less than that after
    the job can pass it; from *passed_until_s* (Unix time) on, no new job can. *estimate_s*: a guess at the wait to
    come, from how long jobs held their slots lately; None if nothing is known.
    """

    score: Points
    rank_in_type: int
    rank: int
    ahead: list[Group]
    slots: list[Slots]
    blocked_by: str
    bound_s: float
    passed_until_s: float
    estimate_s: float | None


def waiting_of(reader: Reader, lane: Lane, now_us: int, settings: Mapping[str, str]) -> Waiting | None:
    """Return why a pending job waits; None if it is pending no longer. *lane*: its lane, the job itself as head."""
    profiles = _profiles_for(reader, lane.type)
    candidates = sorted({lane.type, *(type_ for each in profiles for type_ in each.types)})
    order = order_now(reader, candidates, now_us, settings)
    lanes = reader.lanes(candidates)
    if reader.ask_one("zscore", reader.lane_key(lane), lane.job_id) is None:
        return None
    groups = ahead(reader, order, lanes, order.place(lane, lane.enqueued_us, lane.job_id))
    bound_s = overtaking.seconds(lane.priority, lane.on_demand, order.weights)
    type_ = decode(lane.type)
    slots = [
        Slots([decode(unmarked(of)) for of in each.types], each.workers, each.slots, each.free) for each in profiles
    ]
    return Waiting(
        score=_points(order, lane),
        rank_in_type=1 + sum(group.jobs for group in groups if group.type == type_),
        rank=1 + sum(group.jobs for group in groups),
        ahead=groups,
        slots=slots,
        blocked_by=_blocked_by(type_, slots, withdrawn=reader.capacity([lane.type]).get(lane.type, 0)),
        bound_s=bound_s,
        passed_until_s=lane.enqueued_us / MICRO + bound_s,
        estimate_s=_estimate_s(reader, lane.type, groups, profiles),
    )


@dataclass(frozen=True)
class _Profile:
    """The workers that serve just *types* (encoded)."""

    types: list[str]
    workers: int
    slots: int
    free: int


def _profiles_for(reader: Reader, type_: str) -> list[_Profile]:
    """Return the profiles that serve *type_* (encoded), the most specialised first."""
    serving = [text_of(profile) for profile in reader.ask_one("zrange", reader.key("serving", type_), 0, -1)]
    types, workers, slots, free = (
        reader.fields(name, serving) for name in ("profiles", "members", "slots", "free_slots")
    )
    return [
        _Profile(
            types[profile].split(),
            *(number_of(found.get(profile)) for found in (workers, slots, free)),
        )
        for profile in serving
        if profile in types
    ]


def _points(order: Order, lane: Lane) -> Points:
    terms = order.terms(lane, lane.enqueued_us)
    fits = order.fits.get(lane.type, 0)
    rarity = terms.rarity if fits else 0
    return Points(
        priority=terms.priority / MICRO,
        age=terms.age / MICRO,
        rarity=rarity / MICRO,
        on_demand=terms.on_demand / MICRO,
        total=(terms.total - terms.rarity + rarity) / MICRO,
        slots_that_fit=fits,
    )


def _blocked_by(type_: str, slots: Sequence[Slots], withdrawn: int) -> str:
    """Return what keeps the job pending. *withdrawn*: slots of live workers that take no job of the type just now."""
    total, free = (sum(getattr(each, name) for each in slots) for name in ("slots", "free"))
    if not total and withdrawn:
        return "a rate limit: enough jobs wait for it in the workers that serve the type"
    if not total:
        return f"no live worker serves type {type_!r}: start one with -Q {type_}"
    if free:
        return "nothing: a slot has just become free"
    return "its slot is busy" if total == 1 else f"all {total} slots that fit are busy, or of workers that drain"


def _estimate_s(reader: Reader, type_: str, groups: Sequence[Group], profiles: Sequence[_Profile]) -> float | None:
    """Return (work ahead + one job of the type) / slots, in seconds; None if no duration or no slot is known.

    Work is jobs * the moving average of their type's time in a slot. The jobs of another type count only by the share
    of its slots that could take *type_* (encoded) too: the rest goes elsewhere.
    """
    types = sorted({type_, *(encode(group.type) for group in groups)})
    known = {name: number_of(value) / MICRO for name, value in reader.fields("durations", types).items()}
    capacity = reader.capacity(types)
    ours = sum(each.slots for each in profiles)
    if not known or not ours:
        return None
    usual_s = sum(known.values()) / len(known)
    work_s = known.get(type_, usual_s)
    for group in groups:
        name = encode(group.type)
        shared = sum(each.slots for each in profiles if name in each.types)
        work_s += group.jobs * known.get(name, usual_s) * shared / max(1, shared, capacity.get(name, shared))
    return work_s / ours
