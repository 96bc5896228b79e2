"""Cancel or move very many jobs, some in each call: other callers of the server are served in between."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from celery import Celery
from kombu import Connection

from ..observe import jobs as facts
from ..rules.protocol import MOST_MOVES, REVOKED_KEPT_S
from ..server.fleet import Asked, WholeFleet
from ..server.scheduler import Scheduler
from . import moving
from .choosing import Choice, Chosen, pages, task_ids
from .moving import Move
from .terminating import ability

#: Number of jobs of which one broadcast of remote control tells workers.
_TOLD_TOGETHER = 100

#: Number of jobs that are moved before it is looked at what came of them.
_MOVED_TOGETHER = 100 * MOST_MOVES


class Done(NamedTuple):
    """What was done. *done*: number of jobs, or of calls. *left*: state -> number of the jobs left as they were."""

    done: int
    left: dict[str, int]
    warning: str | None = None


def in_each(
    fleet: WholeFleet, asked: Asked[Choice], act: Callable[[Scheduler, Choice], Done]
) -> tuple[Done, Mapping[str, str]]:
    """Return what *act* did to the choices of all cohorts, and why some are down, of which it did a part at most."""
    chosen = {name: choice for name, choice in asked.answers.items() if choice.chosen}
    acted = fleet.act_in_each(lambda scheduler: act(scheduler, chosen[scheduler.keys.cohort]), chosen)
    every = list(acted.answers.values())
    left = Counter[str]()
    for each in every:
        left.update(each.left)
    warnings = [each.warning for each in every if each.warning]
    done = Done(sum(each.done for each in every), dict(left), "; ".join(dict.fromkeys(warnings)) or None)
    return done, acted.down


def move(app: Celery, scheduler: Scheduler, chosen: Sequence[Chosen], wish: Move) -> Done:
    """Have those of *chosen* that still wait be as *wish* says. Raises OptionError."""
    done, left, warning = 0, Counter[str](), None
    for page in pages((each.job_id for each in chosen), _MOVED_TOGETHER):
        outcome = moving.move(app, scheduler, page, wish)
        warning = warning or outcome.warning
        for found in outcome.found:
            done += found.waits
            left[found.state or "unknown"] += not found.waits
    return Done(done, +left, warning)


def cancel(
    app: Celery,
    scheduler: Scheduler,
    chosen: Sequence[Chosen],
    terminate: bool = False,
    *,
    connection: Connection | None = None,
) -> Done:
    """Revoke *chosen*, calls of merged runs one by one: what waits ends at once, what workers hold does not start.

    *terminate*: what runs is ended as well, where the pool can. Workers are told only of what they hold: they remember
    50,000 revokes, so others would be forgotten.
    """
    done, left, pools = 0, Counter[str](), dict[str, str | None]()
    going_on = 0
    for page in pages(task_ids(scheduler.reader, chosen), _TOLD_TOGETHER):
        done += scheduler.revoke(page, [], keep_s=REVOKED_KEPT_S)
        jobs = facts.get_many(scheduler.reader, page)
        running = {job.worker for job in jobs if terminate and job.state == "running"}
        pools |= ability(app, running - pools.keys(), connection)
        held = []
        for job in jobs:
            is_ended = terminate and job.state == "running" and not pools.get(job.worker or "")
            if job.state == "claimed" or is_ended:
                held.append(job.id)
            elif job.state != "revoked":
                left[job.state] += 1
                going_on += terminate and job.state == "running"
        if held:
            app.control.revoke(held, terminate=terminate, connection=connection)
        done += len(held)
    names = ", ".join(sorted({pool for pool in pools.values() if pool}))
    return Done(
        done, +left, f"{going_on} go on: their workers' pools ({names}) cannot end a task" if going_on else None
    )
