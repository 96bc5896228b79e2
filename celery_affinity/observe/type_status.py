"""The state of one type, as a report says it."""

from dataclasses import dataclass, field, replace
from typing import Any

from ..clock import SECOND_US
from ..rules.bounds import Bound
from ..rules.encoding import decode
from ..server.backlogs import Backlog
from ..server.fleet import Row
from .reserves import Reserved
from .trend import Trend
from .type_rules import Pause, TypeLimit


@dataclass(frozen=True)
class TypeStatus(Row):
    """A type with pending or claimed jobs, or live workers.

    *claimed*: number of jobs that workers hold; None if versatile workers hold more than `MOST_CLAIMS_READ`.
    *oldest_wait_s*: None if no job is pending. *slots*, *free*: slots, and free ones, of the live workers that serve
    the type. *paused*: whether the type is paused, by itself or with all others.

    Jobs that could not start if slots were free: *kept_back*: those of the *pending* jobs that keys keep back, as an
    estimate if jobs wait for more than 1,000 keys. *kept_back_by_limit*: those of the others that the *limit* of the
    type keeps back, for which *running* jobs count. *kept_back_by_reserves*: those of the *pending* jobs that wait so
    that enough slots stay free. *reserves*: for whom slots are kept free.

    *ran_merged*: calls that ran with others, since workers serve the type. *further_calls*: calls that merged and wait,
    without one for each pending job. *bound*: how many jobs may wait, by the app.conf that was asked; None: any number,
    or no app was asked. *average_s*: average time in a slot, None if none has ended.
    """

    type: str
    pending: int
    on_demand: int
    claimed: int | None
    oldest_wait_s: float | None
    slots: int
    free: int
    kept_back: int = 0
    paused: bool = False
    kept_back_by_reserves: int = 0
    reserves: list[Reserved] = field(default_factory=list)
    ran_merged: int = 0
    trend: Trend | None = None
    further_calls: int = 0
    bound: Bound | None = None
    limit: int | None = None
    running: int | None = None
    kept_back_by_limit: int = 0
    average_s: float | None = None

    @property
    def busy(self) -> int:
        return self.slots - self.free

    @property
    def calls(self) -> int:
        """The number of calls that the pending jobs are: a job of calls that merged is several."""
        return self.pending + self.further_calls

    @property
    def unserved(self) -> bool:
        """Whether jobs wait that no live worker can take."""
        return self.pending > 0 and self.slots == 0


def type_status(
    type_: str, backlog: Backlog | None, slots: int, free: int, claimed: int | None, now_us: int
) -> TypeStatus:
    return TypeStatus(
        type=decode(type_),
        pending=backlog.jobs if backlog else 0,
        on_demand=backlog.on_demand if backlog else 0,
        claimed=claimed,
        oldest_wait_s=max(0, now_us - backlog.oldest_us) / SECOND_US if backlog else None,
        slots=slots,
        free=free,
        kept_back=backlog.kept_back if backlog else 0,
    )


def corrected(backlog: Backlog | None, beyond_lanes: int) -> Backlog | None:
    """Return *backlog*, of whose jobs so many more could start than stand in lanes; below 0: fewer."""
    if backlog is None:
        return None
    return backlog._replace(kept_back=min(backlog.jobs, max(0, backlog.kept_back - beyond_lanes)))


def with_limit(limit: TypeLimit | None, status: TypeStatus, **more: Any) -> TypeStatus:
    """Return *status* with *more*, and with the limit of its type, if there is one."""
    if limit is None:
        return replace(status, **more)
    kept_back = max(0, status.pending - status.kept_back - limit.room)
    return replace(status, limit=limit.limit, running=limit.running, kept_back_by_limit=kept_back, **more)


def with_pauses(types: list[TypeStatus], found: list[Pause]) -> list[TypeStatus]:
    named = {each.name for each in found if each.kind == "type"}
    is_all = any(each.kind == "all" for each in found)
    return [replace(each, paused=is_all or each.type in named) for each in types]
