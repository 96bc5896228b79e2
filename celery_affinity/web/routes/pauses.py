"""Pauses of a type, a key or all types: `celery affinity pause` and `resume`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ...errors import CohortDownError, refuse
from ...observe import cohorts
from ...observe.type_rules import Pause, address, in_vain, no_pause, pauses
from ...rules.addresses import Kind
from ...rules.numbers import LONGEST_S
from ...rules.type_name import ACCEPTED, is_type
from ...server.fleet import WholeFleet
from ...server.scheduler import Scheduler
from ..described import errors, replies
from ..replies import RefusedError, header_of, reply, rows
from ..site import Site


class Pausing(BaseModel):
    """A pause. *for_s*: after so many seconds it ends by itself; None: it does not."""

    model_config = ConfigDict(extra="forbid")
    reason: str = Field("", max_length=1000)
    for_s: float | None = Field(None, gt=0, le=LONGEST_S)


class PausingOf(Pausing):
    """A pause of a type or key, its *name*, or of all types, which have none."""

    kind: Kind
    name: str = ""


@dataclass(frozen=True)
class Paused:
    """All pauses after a new one. *warning*: the new one is that of a type that no live worker serves.

    *down*: why nothing was paused in cohorts.
    """

    pauses: list[Pause]
    warning: str | None
    down: dict[str, str] | None = None


def add(api: APIRouter, site: Site) -> None:
    paused = replies(Paused, status=202)
    resumed = replies(list[Pause], 409, status=202, text="The pauses that are left.")

    @api.get("/api/pauses", summary="Pauses of types, keys and all types", responses=replies(list[Pause]))
    async def all_of_them() -> Response:
        return rows(await site.with_fleet(WholeFleet.each, _pauses))

    @api.post(
        "/api/pauses",
        summary="Pause a type, a key or all types: none of their jobs starts",
        status_code=202,
        responses=paused,
    )
    async def pause(pausing: PausingOf) -> Response:
        return await _paused(site, pausing.kind, pausing.name, pausing)

    @api.delete(
        "/api/pauses", summary="End the pause of a type, of a key, or of all types", status_code=202, responses=resumed
    )
    async def resume(kind: Annotated[Kind, Query()], name: str = "") -> Response:
        return await _resumed(site, kind, name)

    @api.post(
        "/api/types/{type_:path}/pause",
        summary="Pause a type: none of its jobs starts",
        status_code=202,
        responses={**paused, **errors(404)},
    )
    async def pause_type(type_: str, pausing: Pausing | None = None) -> Response:
        return await _paused(site, "type", type_, pausing or Pausing(reason="", for_s=None))

    @api.post(
        "/api/types/{type_:path}/resume",
        summary="End the pause of a type",
        status_code=202,
        responses={**resumed, **errors(404)},
    )
    async def resume_type(type_: str) -> Response:
        return await _resumed(site, "type", type_)


async def _paused(site: Site, kind: Kind, name: str, given: Pausing) -> Response:
    what = _checked(kind, name)

    def begin(scheduler: Scheduler) -> str | None:
        scheduler.pause(what, for_s=given.for_s, why=given.reason)
        return in_vain(scheduler.reader, kind, name)

    def pause(fleet: WholeFleet) -> Paused:
        begun = fleet.each(begin, fleet.serving(name if kind == "type" else None))
        if not begun.answers:
            raise CohortDownError(*next(iter(begun.down.items())))
        found = cohorts.rows(fleet.each(_pauses))
        return Paused(found, next(iter(begun.answers.values())), dict(begun.down) or None)

    found = await site.with_fleet(pause)
    return reply(found, 202, header_of(found.down))


async def _resumed(site: Site, kind: Kind, name: str) -> Response:
    what = _checked(kind, name)

    def resume(fleet: WholeFleet) -> tuple[bool, list[Pause], Mapping[str, str]]:
        among = fleet.serving(name if kind == "type" else None)
        ended = fleet.act_in_each(lambda scheduler: scheduler.resume(what), among)
        if ended.down and not any(ended.answers.values()):
            raise CohortDownError(*next(iter(ended.down.items())))
        return any(ended.answers.values()), cohorts.rows(fleet.each(_pauses)), ended.down

    was_paused, left, down = await site.with_fleet(resume)
    if not was_paused:
        raise RefusedError(409, no_pause(kind, name))
    return reply(left, 202, header_of(down))


def _checked(kind: Kind, name: str) -> str:
    """Return what the arrows call it. Raises OptionError."""
    if kind == "type" and not is_type(name):
        raise refuse("type", ACCEPTED, name[:300])
    if kind == "key" and not name:
        raise refuse("name", "a key, a text that is not empty", name)
    if kind == "all" and name:
        raise refuse("name", "empty for all types", name[:300])
    return address(kind, name)


def _pauses(scheduler: Scheduler) -> list[Pause]:
    return pauses(scheduler.reader)
