"""Give jobs that wait another type, priority or mode, and say what came of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from celery import Celery

from ..client.of_app import settings_of
from ..errors import OptionError, refuse
from ..observe.jobs import settings_command
from ..rules.affinity import check_on_demand, check_priority
from ..rules.encoding import decode, unmarked
from ..rules.score import Weights
from ..rules.type_name import ACCEPTED, did_you_mean, is_type
from ..server.replies import WasFound
from ..server.scheduler import Scheduler


@dataclass(frozen=True)
class Move:
    """New type, priority and mode of jobs; None: unchanged. *priority*: 0..10, 10 highest.

    Raises OptionError for a value that is not accepted, or if all three are None.
    """

    type: str | None = None
    priority: int | None = None
    on_demand: bool | None = None

    def __post_init__(self) -> None:
        if self.type is None and self.priority is None and self.on_demand is None:
            raise OptionError("give the jobs a new type, priority or mode")
        if self.type is not None and not is_type(self.type):
            raise refuse("type", ACCEPTED, self.type)
        if self.priority is not None:
            check_priority(self.priority)
        if self.on_demand is not None:
            check_on_demand(self.on_demand)

    def __str__(self) -> str:
        words = [f"type {self.type!r}"] if self.type is not None else []
        words += [f"priority {self.priority}"] if self.priority is not None else []
        words += [("on demand" if self.on_demand else "queued")] if self.on_demand is not None else []
        return ", ".join(words)


@dataclass(frozen=True)
class MoveResult:
    """What came of a move. *found*: each job as it was before. *warning*: what may be wrong with the type; or None."""

    found: list[WasFound]
    warning: str | None


def move(app: Celery, scheduler: Scheduler, job_ids: Sequence[str], wish: Move) -> MoveResult:
    """Have those of *job_ids* that wait be as *wish* says, with the time at which they were enqueued.

    Raises OptionError for a type that *app* does not schedule.
    """
    if wish.type is not None and not settings_of(app).schedules(wish.type):
        raise refuse("type", "the name of a queue that is scheduled (affinity_queues)", wish.type)
    check_cohort(app, wish, [scheduler.keys.cohort])
    priority = None if wish.priority is None else _as_scripts_count(scheduler, int(wish.priority))
    moved = scheduler.move(job_ids, type_=wish.type, on_demand=wish.on_demand, priority=priority)
    warning = None
    if wish.type is not None and not moved.served and any(each.waits for each in moved.found):
        served = {decode(unmarked(type_)) for type_ in scheduler.reader.capacity()}
        warning = f"no live worker serves type {wish.type!r}{did_you_mean(wish.type, served)}"
    return MoveResult(moved.found, warning)


def check_cohort(app: Celery, wish: Move | None, names: Iterable[str]) -> None:
    """Raise OptionError if the type that jobs of the cohorts *names* are to have is in another cohort."""
    settings = settings_of(app)
    if wish is None or wish.type is None or not settings.cohorts:
        return
    others = [name for name in names if name != settings.cohort_of(wish.type)]
    if others:
        where = settings.cohort_of(wish.type)
        raise OptionError(
            f"type must be one of cohort {others[0]!r}, in which the jobs are, got: {wish.type!r} of cohort {where!r}"
        )


def _as_scripts_count(scheduler: Scheduler, priority: int) -> int:
    """Return *priority*, which has 10 as the highest, as the arrows count it at the moment."""
    is_reversed, _ = scheduler.reader.ask_one(*settings_command(scheduler.reader))
    return Weights(priority_reversed=is_reversed == b"1").read(priority)
