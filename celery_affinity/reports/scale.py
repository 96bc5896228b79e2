"""Report how many slots each part of the fleet needs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from ..errors import refuse
from ..policy.slot_math import MAX_TARGET_WAIT_S, TARGET_WAIT_S, TypeLoad, wanted_slots
from ..scheduler.cohorts import CohortRow
from .render import Table
from .report import Answer, Param, Source, report, with_cohort_name
from .status import Report, Status, TypeStatus, WorkerStatus


@dataclass(frozen=True)
class Scale(CohortRow):
    """The current and the wanted slots of the workers that serve exactly *types*.

    If other workers serve a type as well, only the share of these workers' slots is included.

    - *profile*: the types, separated by commas.
    - *waiting*: number of jobs of these types that wait for a free slot and for nothing else.
    - *running*: number of slots in use.
    - *work_s*: time of all these jobs in one slot, in seconds.
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
    """Return the scale of every profile of live workers, and of each unserved type."""
    profiles: dict[str, tuple[list[str], list[WorkerStatus]]] = {}
    for worker in status.workers:
        if worker.types:
            profiles.setdefault(scale_name(worker.types), (worker.types, []))[1].append(worker)
    for row in status.types:
        if row.unserved:
            profiles.setdefault(row.type, ([row.type], []))
    rows = {row.type: row for row in status.types}
    return [_scale(types, workers, rows, target_wait_s) for _, (types, workers) in sorted(profiles.items())]


def scale_of(status: Status, types: Iterable[str], target_wait_s: float = TARGET_WAIT_S) -> Scale:
    """Return the scale of the workers that serve exactly *types*, even if there are none."""
    names = sorted(set(types))
    workers = [worker for worker in status.workers if sorted(worker.types) == names]
    return _scale(names, workers, {row.type: row for row in status.types}, target_wait_s)


def _scale(
    types: Iterable[str], workers: Sequence[WorkerStatus], rows: Mapping[str, TypeStatus], target_wait_s: float
) -> Scale:
    """Return the scale of *workers*, which serve exactly *types*. *rows*: by type."""
    names = sorted(set(types))
    slots = sum(worker.slots for worker in workers if worker.takes_jobs)
    running = sum(min(worker.held, worker.slots) for worker in workers)
    loads = [_load(rows[name], slots) for name in names if name in rows]
    return Scale(
        profile=",".join(names),
        types=names,
        slots=slots,
        running=running,
        waiting=round(sum(load.waiting for load in loads), 3),
        work_s=round(sum(load.work_s for load in loads), 3),
        target_wait_s=target_wait_s,
        wanted_slots=wanted_slots(loads, running, target_wait_s),
    )


def scale_of_type(scales: Sequence[Scale], types: Iterable[str]) -> Scale:
    """Return the scale of *types*, summed over several cohorts."""
    if len(scales) == 1:
        return scales[0]
    names = sorted(set(types))
    return Scale(
        profile=scale_name(names),
        types=names,
        slots=sum(scale.slots for scale in scales),
        running=sum(scale.running for scale in scales),
        waiting=round(sum(scale.waiting for scale in scales), 3),
        work_s=round(sum(scale.work_s for scale in scales), 3),
        target_wait_s=scales[0].target_wait_s,
        wanted_slots=sum(scale.wanted_slots for scale in scales),
    )


def _load(status: TypeStatus, own_slots: int) -> TypeLoad:
    """Return the share of a type's load that workers with *own_slots* slots must take."""
    part = max(1, own_slots) / max(1, own_slots, status.slots)
    kept_back = status.kept_back + max(status.kept_back_by_limit, status.kept_back_by_reserves)
    waiting = 0 if status.paused else max(0, status.pending - kept_back)
    running = status.busy if status.claimed is None else status.claimed
    return TypeLoad(waiting * part, running * part, status.average_s)


_SCALES = Table[Scale](
    {
        "types": "profile",
        "slots": "slots",
        "running": "running",
        "waiting": lambda scale: f"{scale.waiting:,.1f}",
        "work": lambda scale: f"{scale.work_s:,.1f} s",
        "wanted slots": "wanted_slots",
    }
)

Types = Annotated[tuple[str, ...], Param(is_argument=True, over_http=False)]
TargetWait = Annotated[
    float, Param("Seconds within which the jobs that wait now should start.", above=0, max_value=MAX_TARGET_WAIT_S)
]


@report("scale", "/api/scale", "How many slots each group of workers should have", text=_SCALES.text)
def scale(source: Source, types: Types = (), target_wait: TargetWait = TARGET_WAIT_S) -> Answer[list[Scale]]:
    """Show the wanted number of slots, for each group of workers or for the workers that serve exactly TYPEs."""
    return read_scales(source, types, target_wait)


def read_scales(source: Source, types: Sequence[str], target_wait_s: float) -> Answer[list[Scale]]:
    """Return the wanted slots of each group of workers or, for *types*, of their workers in each cohort.

    Raises OptionError.
    """
    if not 0 < target_wait_s <= MAX_TARGET_WAIT_S:
        accepted = f"a number of seconds above 0, {MAX_TARGET_WAIT_S:,.0f} at most"
        raise refuse("target_wait", accepted, target_wait_s)
    scales: list[Scale] = []
    replies = source.fleet.each(lambda scheduler: Report(scheduler.reader).status())
    for name, status in replies.answers.items():
        of_types = [type_ for type_ in types if source.fleet.cohort_of(type_) == name]
        rows = [scale_of(status, of_types, target_wait_s)] if of_types else []
        rows = rows if types else scale_of_types(status, target_wait_s)
        scales += with_cohort_name(rows, name) if replies.is_split else rows
    return Answer(scales, replies.down)
