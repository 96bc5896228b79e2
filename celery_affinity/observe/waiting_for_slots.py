"""How long a pending job waits for a slot, rules aside: score, jobs ahead, slots that fit, and a guess at the wait."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..clock import SECOND_US
from ..rules import overtaking
from ..rules.encoding import decode, encode, unmarked
from ..rules.rows import number_of, text_of
from ..rules.score import MICRO
from ..server.backlogs import Lane
from ..server.reader import Reader
from . import sentences
from .claim_order import Group, Order, ahead
from .overdue_slots import overdue_jobs
from .waiting import Block, Points, SlotsOfTypes, Waiting


@dataclass(frozen=True)
class Profile:
    """The workers that serve exactly *types* (encoded)."""

    id: str
    types: list[str]
    workers: int
    slots: int
    free: int


def profiles_for(reader: Reader, type_: str) -> list[Profile]:
    """Return the profiles that serve *type_* (encoded), the most specialised first."""
    serving = [text_of(profile) for profile in reader.ask_one("zrange", reader.key("serving", type_), 0, -1)]
    types, workers, slots, free = (
        reader.fields(name, serving) for name in ("profiles", "members", "slots", "free_slots")
    )
    return [
        Profile(
            profile,
            types[profile].split(),
            *(number_of(found.get(profile)) for found in (workers, slots, free)),
        )
        for profile in serving
        if profile in types
    ]


def waiting_for_slots(
    reader: Reader, order: Order, lane: Lane, lanes: Sequence[Lane], profiles: Sequence[Profile], *, kept_back: bool
) -> Waiting:
    """Return the reasons without those of the job's own key."""
    groups = ahead(reader, order, lanes, order.place(lane, lane.enqueued_us, lane.job_id))
    before = [group for group in groups if kept_back or not group.kept_back]
    bound_s = overtaking.seconds(lane.priority, lane.on_demand, order.weights, bonus=order.bonus)
    type_ = decode(lane.type)
    slots = [
        SlotsOfTypes([decode(unmarked(of)) for of in each.types], each.workers, each.slots, each.free)
        for each in profiles
    ]
    blocked_by = _blocked_by(type_, slots, withdrawn=reader.capacity([lane.type]).get(lane.type, 0))
    is_full = any(each.rule == "slots" for each in blocked_by)
    overdue = overdue_jobs(reader, [each.id for each in profiles], order.now_us) if is_full else []
    return Waiting(
        score=_points(order, lane),
        rank_in_type=1 + sum(group.jobs for group in before if group.type == type_),
        rank=1 + sum(group.jobs for group in before),
        ahead=groups,
        slots=slots,
        blocked_by=[Block(each.rule, each.why + sentences.overdue(overdue)) for each in blocked_by],
        bound_s=bound_s,
        passed_until_s=lane.enqueued_us / SECOND_US + bound_s,
        estimate_s=_estimate_s(reader, lane.type, before, profiles, overdue=len(overdue)),
        overdue=overdue,
    )


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


def _blocked_by(type_: str, slots: Sequence[SlotsOfTypes], withdrawn: int) -> list[Block]:
    """Return the obstacles before the job, but for its key.

    *withdrawn*: slots of live workers that take no job of the type just now.
    """
    total, free = (sum(getattr(each, name) for each in slots) for name in ("slots", "free"))
    if not total and withdrawn:
        return [Block("rate limit", sentences.LIMITED_IN_WORKERS)]
    if not total:
        return [Block("type", sentences.unserved(type_))]
    if free:
        return []
    return [Block("slots", sentences.all_busy(total))]


def _estimate_s(
    reader: Reader, type_: str, groups: Sequence[Group], profiles: Sequence[Profile], *, overdue: int
) -> float | None:
    """Return (work ahead + one job of the type) / slots, in seconds; None if no duration or no slot is known.

    Slots whose jobs are *overdue* do not count: nobody knows when they are free.

    Work is jobs * the moving average of their type's time in a slot. The jobs of another type count only by the share
    of its slots that could take *type_* (encoded) too: the rest goes elsewhere.
    """
    types = sorted({type_, *(encode(group.type) for group in groups)})
    known = {name: number_of(value) / SECOND_US for name, value in reader.fields("durations", types).items()}
    capacity = reader.capacity(types)
    ours = sum(each.slots for each in profiles) - overdue
    if not known or ours <= 0:
        return None
    usual_s = sum(known.values()) / len(known)
    work_s = known.get(type_, usual_s)
    for group in groups:
        name = encode(group.type)
        shared = sum(each.slots for each in profiles if name in each.types)
        work_s += group.jobs * known.get(name, usual_s) * shared / max(1, shared, capacity.get(name, shared))
    return work_s / ours
