"""Recurring calls: made when none like them came for a while."""

from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...dispatcher.recurring_calls import fire as fire_call
from ...errors import CohortDownError
from ...observe import cohorts
from ...observe.recurring import RecurringRow, recurring_rows, without_arguments
from ...rules.spelling import closest
from ...server.fleet import WholeFleet
from ...server.replies import DueCall
from ...server.scheduler import Scheduler
from ..described import replies
from ..replies import RefusedError, header_of, reply
from ..site import Site
from ..values import why_hidden


@dataclass(frozen=True)
class Removed:
    """The name of the recurring call that was *removed*. *declared_by*: the app whose setting declares it, if any."""

    removed: str
    declared_by: str | None


def add(api: APIRouter, site: Site) -> None:
    changed = replies(RecurringRow, 404, status=202)

    def _shown(rows: list[RecurringRow], request: Request) -> list[RecurringRow]:
        return without_arguments(rows) if why_hidden(site, request) else rows

    def one(row: RecurringRow, request: Request) -> Response:
        return reply(_shown([row], request)[0], 202)

    @api.get(
        "/api/recurring",
        summary="Recurring calls: what they match, the last match, and the next firing",
        responses=replies(list[RecurringRow]),
    )
    async def calls(request: Request) -> Response:
        asked = await site.with_fleet(WholeFleet.each, _rows)
        return reply(_shown(cohorts.rows(asked), request), headers=header_of(asked.down))

    @api.post(
        "/api/recurring/{name:path}/fire",
        summary="Make a recurring call now",
        status_code=202,
        responses=replies(RecurringRow, 404, 409, status=202),
    )
    async def fire(request: Request, name: str) -> Response:
        found = await site.with_fleet(_find, name)
        if found.task not in site.app.tasks:
            raise RefusedError(409, f"the app has no task {found.task!r}, the task of recurring call {name!r}")
        await site.foreign(_fire, site, found)
        return one(await site.with_fleet(_find, name), request)

    @api.post(
        "/api/recurring/{name:path}/pause",
        summary="Pause a recurring call until it is resumed",
        status_code=202,
        responses=changed,
    )
    async def pause(request: Request, name: str) -> Response:
        return one(await site.with_fleet(_suspend, name, True), request)

    @api.post(
        "/api/recurring/{name:path}/resume", summary="Resume a recurring call", status_code=202, responses=changed
    )
    async def resume(request: Request, name: str) -> Response:
        return one(await site.with_fleet(_suspend, name, False), request)

    @api.delete("/api/recurring/{name:path}", summary="Remove a recurring call", responses=replies(Removed, 404))
    async def remove(name: str) -> Response:
        return reply(await site.with_fleet(_remove, name))


def _rows(scheduler: Scheduler) -> list[RecurringRow]:
    return recurring_rows(scheduler.reader)


def _find(fleet: WholeFleet, name: str) -> RecurringRow:
    """Return a recurring call, with its cohort if there are several."""
    asked = fleet.each(_rows)
    rows = {row.name: row for row in cohorts.rows(asked)}
    if name not in rows:
        if asked.down:
            raise CohortDownError(*next(iter(asked.down.items())))
        close = closest(name, rows)
        question = f"; did you mean {close!r}?" if close else ""
        raise RefusedError(404, f"no recurring call is named {name[:300]!r}{question}")
    return rows[name]


def _fire(site: Site, found: RecurringRow) -> None:
    call = DueCall(found.name, "", found.task, found.signature)
    with site.broker.reach() as fleet:
        fleet.act(found.cohort or fleet.names[0], lambda scheduler: fire_call(site.app, scheduler, call))


def _suspend(fleet: WholeFleet, name: str, is_suspended: bool) -> RecurringRow:
    where = _find(fleet, name).cohort or fleet.names[0]
    fleet.ask(where, lambda scheduler: scheduler.suspend(name, is_suspended))
    return _find(fleet, name)


def _remove(fleet: WholeFleet, name: str) -> Removed:
    found = _find(fleet, name)
    fleet.act(found.cohort or fleet.names[0], lambda scheduler: scheduler.stop(name))
    return Removed(name, found.app or None)
