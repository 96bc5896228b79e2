"""How many slots each part of the fleet should have: the answer of ``celery affinity scale``."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..policy.slot_math import TARGET_WAIT_S, TypeLoad, wanted_slots
from ..scheduler.cohorts import CohortRow
from .status import Status, TypeStatus


@dataclass(frozen=True)
class Scale(CohortRow):
    """The slots of the workers that serve just *types*, and those that there should be.

    *profile*: the types, with commas between them. *waiting*: jobs of these types that could start if a slot were free,
    *running*: slots in use. *work_s*: the time that all of that takes in one slot. Of a type that others serve as well,
    the part counts that these workers have of the slots.
    """

    profile: str
    types: list[str]
    slots: int
    running: int
    waiting: float
    work_s: float
    target_wait_s: float
    wanted_slots: int


def scale_name(types: Iterable[str]) -> str:
    """Return the name of the profile of *types*."""
    return ",".join(sorted(set(types)))


def scale_of_types(status: Status, target_wait_s: float = TARGET_WAIT_S) -> list[Scale]:
    """Return the scale of every profile that live workers have, and of each type that nobody serves."""
    profiles = {scale_name(each.types): each.types for each in status.workers if each.types}
    profiles |= {each.type: [each.type] for each in status.types if each.unserved}
    return [scale_of(status, types, target_wait_s) for _, types in sorted(profiles.items())]


def scale_of(status: Status, types: Iterable[str], target_wait_s: float = TARGET_WAIT_S) -> Scale:
    """Return the scale of the workers that serve just *types*, whether there are any or not."""
    names = sorted(set(types))
    own = [each for each in status.workers if sorted(each.types) == names]
    slots = sum(each.slots for each in own if each.takes_jobs)
    running = sum(min(each.held, each.slots) for each in own)
    loads = [_load(each, slots) for each in status.types if each.type in names]
    return Scale(
        profile=scale_name(names),
        types=names,
        slots=slots,
        running=running,
        waiting=round(sum(each.waiting for each in loads), 3),
        work_s=round(sum(each.work_s for each in loads), 3),
        target_wait_s=target_wait_s,
        wanted_slots=wanted_slots(loads, running, target_wait_s),
    )


def scale_of_type(found: Sequence[Scale], types: Iterable[str]) -> Scale:
    """Return the scale of *types*, which may be the sum of those of several cohorts."""
    if len(found) == 1:
        return found[0]
    names = sorted(set(types))
    return Scale(
        profile=scale_name(names),
        types=names,
        slots=sum(each.slots for each in found),
        running=sum(each.running for each in found),
        waiting=round(sum(each.waiting for each in found), 3),
        work_s=round(sum(each.work_s for each in found), 3),
        target_wait_s=found[0].target_wait_s,
        wanted_slots=sum(each.wanted_slots for each in found),
    )


def _load(each: TypeStatus, own_slots: int) -> TypeLoad:
    """Return the part of the load of a type that workers with *own_slots* have to take."""
    part = max(1, own_slots) / max(1, own_slots, each.slots)
    kept_back = each.kept_back + max(each.kept_back_by_limit, each.kept_back_by_reserves)
    waiting = 0 if each.paused else max(0, each.pending - kept_back)
    running = each.busy if each.claimed is None else each.claimed
    return TypeLoad(waiting * part, running * part, each.average_s)
