"""Recurring calls: made when none like them came for a while."""

from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...dispatcher.recurring_calls import fire as fire_call
from ...observe.recurring import RecurringRow, recurring_rows, without_arguments
from ...rules.spelling import closest
from ...server.replies import DueCall
from ...server.scheduler import Scheduler
from ..described import replies
from ..replies import RefusedError, reply
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
        return reply(_shown(await site.with_scheduler(_rows), request))

    @api.post(
        "/api/recurring/{name:path}/fire",
        summary="Make a recurring call now",
        status_code=202,
        responses=replies(RecurringRow, 404, 409, status=202),
    )
    async def fire(request: Request, name: str) -> Response:
        found = await site.with_scheduler(_find, name)
        if found.task not in site.app.tasks:
            raise RefusedError(409, f"the app has no task {found.task!r}, the task of recurring call {name!r}")
        await site.foreign(_fire, site, found)
        return one(await site.with_scheduler(_find, name), request)

    @api.post(
        "/api/recurring/{name:path}/pause",
        summary="Pause a recurring call until it is resumed",
        status_code=202,
        responses=changed,
    )
    async def pause(request: Request, name: str) -> Response:
        return one(await site.with_scheduler(_suspend, name, True), request)

    @api.post(
        "/api/recurring/{name:path}/resume", summary="Resume a recurring call", status_code=202, responses=changed
    )
    async def resume(request: Request, name: str) -> Response:
        return one(await site.with_scheduler(_suspend, name, False), request)

    @api.delete("/api/recurring/{name:path}", summary="Remove a recurring call", responses=replies(Removed, 404))
    async def remove(name: str) -> Response:
        return reply(await site.with_scheduler(_remove, name))


def _rows(scheduler: Scheduler) -> list[RecurringRow]:
    return recurring_rows(scheduler.reader)


def _find(scheduler: Scheduler, name: str) -> RecurringRow:
    rows = {row.name: row for row in _rows(scheduler)}
    if name not in rows:
        close = closest(name, rows)
        question = f"; did you mean {close!r}?" if close else ""
        raise RefusedError(404, f"no recurring call is named {name[:300]!r}{question}")
    return rows[name]


def _fire(site: Site, found: RecurringRow) -> None:
    with site.broker.reach() as scheduler:
        fire_call(site.app, scheduler, DueCall(found.name, "", found.task, found.signature))


def _suspend(scheduler: Scheduler, name: str, is_suspended: bool) -> RecurringRow:
    _find(scheduler, name)
    scheduler.suspend(name, is_suspended)
    return _find(scheduler, name)


def _remove(scheduler: Scheduler, name: str) -> Removed:
    found = _find(scheduler, name)
    scheduler.stop(name)
    return Removed(name, found.app or None)
