"""Dead letters: jobs that will not run again, unless they are replayed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ...observe import cohorts, dead_letters
from ...observe.dead_letters import DeadLetter, LetterDetails, LetterFilter
from ...rules.dead_reasons import REASONS
from ...rules.numbers import LONGEST_S
from ...server.fleet import WholeFleet
from ...server.scheduler import Scheduler
from ..described import model_of, replies
from ..replies import RefusedError, header_of, reply
from ..site import Site
from ..values import why_hidden

T = TypeVar("T")

_Limit = Annotated[int, Query(ge=1, le=1000)]


@dataclass(frozen=True)
class ReplayedLetters:
    """The ids of the jobs that were published again."""

    replayed: list[str]


@dataclass(frozen=True)
class Dropped:
    """How many dead letters were deleted."""

    dropped: int


def add(api: APIRouter, site: Site) -> None:
    @api.get("/api/dead", summary="Dead letters, the newest first", responses=replies(list[DeadLetter]))
    async def dead(
        reason: str | None = None,
        type: str | None = None,
        task: str | None = None,
        older_than_s: Annotated[float | None, Query(ge=0, le=LONGEST_S)] = None,
        limit: _Limit = 100,
    ) -> Response:
        if reason is not None and reason not in REASONS:
            raise RefusedError(400, f"reason must be one of {', '.join(REASONS)}, got: {reason[:100]!r}")
        which = LetterFilter((), reason, type, task, older_than_s)
        asked = await site.with_fleet(WholeFleet.each, lambda scheduler: _find(scheduler, which, limit))
        found = sorted(cohorts.rows(asked), key=lambda each: each.ended_s, reverse=True)[:limit]
        return reply(found, headers=header_of(asked.down))

    @api.get(
        "/api/dead/{id:path}",
        summary="A dead letter, by the id of its task or job, with the arguments of the call",
        responses=replies(list[model_of(LetterDetails, "ShownDeadLetter")], 404),  # type: ignore[misc]
    )
    async def show(request: Request, id: str) -> Response:
        hidden = why_hidden(site, request)
        found = await site.with_fleet(WholeFleet.first, lambda one: dead_letters.shown(one.reader, id, hidden) or None)
        return reply(_there(id, None if found is None else found[1]))

    @api.post(
        "/api/dead/{id:path}/replay",
        summary="Run a dead letter again",
        status_code=202,
        responses=replies(ReplayedLetters, 404, 409, status=202),
    )
    async def replay(id: str) -> Response:
        replayed = _there(id, await site.with_fleet(_act, id, lambda scheduler, found: scheduler.replay(found)))
        if not replayed:
            raise RefusedError(409, "its message is gone")
        return reply(ReplayedLetters(replayed), 202)

    @api.delete("/api/dead/{id:path}", summary="Delete a dead letter for ever", responses=replies(Dropped, 404))
    async def drop(id: str) -> Response:
        dropped = _there(id, await site.with_fleet(_act, id, lambda scheduler, found: scheduler.drop(found)))
        return reply(Dropped(dropped))


def _there(id: str, found: T | None) -> T:
    """Return what was *found* in a cohort."""
    if found is None:
        raise RefusedError(404, f"no dead letter has the task id or job id {id[:300]!r}")
    return found


def _find(scheduler: Scheduler, which: LetterFilter, limit: int | None = None) -> list[DeadLetter]:
    return dead_letters.find(scheduler.reader, which, limit)


def _act(fleet: WholeFleet, id: str, change: Callable[[Scheduler, list[str]], T]) -> T | None:
    """Return what *change* says of the jobs of the dead letters with that id; None if there are none."""
    found = fleet.first(lambda scheduler: [each.job_id for each in _find(scheduler, LetterFilter((id,)))] or None)
    return None if found is None else fleet.act(found[0], lambda scheduler: change(scheduler, found[1]))
