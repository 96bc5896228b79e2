"""Types: their state, pausing and resuming them."""

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ...observe.type_rules import Pause, address, pauses
from ...rules.type_name import ACCEPTED, is_type
from ...server.scheduler import Scheduler
from ..replies import RefusedError, reply
from ..site import Site
from .figures import status_of

#: Longest time of a pause with an end, s: ten years.
_LONGEST_S = 3_650 * 86_400


class Pausing(BaseModel):
    """A pause. *for_s*: after so many seconds it ends by itself; None: it does not."""

    model_config = ConfigDict(extra="forbid")
    reason: str = Field("", max_length=1000)
    for_s: float | None = Field(None, gt=0, le=_LONGEST_S)


def add(api: FastAPI, site: Site) -> None:
    @api.get("/api/types", summary="Types with jobs or workers")
    async def types() -> Response:
        return reply((await site.with_scheduler(status_of, site.bounds)).types)

    @api.get("/api/pauses", summary="Pauses of types, keys and all types")
    async def paused() -> Response:
        return reply(await site.with_scheduler(_pauses))

    @api.post("/api/types/{type_:path}/pause", summary="Pause a type: none of its jobs starts", status_code=202)
    async def pause(type_: str, pausing: Pausing | None = None) -> Response:
        given = pausing or Pausing(reason="", for_s=None)
        return reply(await site.with_scheduler(_pause, _checked(type_), given), 202)

    @api.post("/api/types/{type_:path}/resume", summary="End the pause of a type", status_code=202)
    async def resume(type_: str) -> Response:
        if not await site.with_scheduler(_resume, _checked(type_)):
            raise RefusedError(409, f"type {type_!r} itself is not paused")
        return reply(await site.with_scheduler(_pauses), 202)


def _checked(type_: str) -> str:
    if not is_type(type_):
        raise RefusedError(400, f"a type is {ACCEPTED}, got: {type_[:300]!r}")
    return type_


def _pauses(scheduler: Scheduler) -> list[Pause]:
    return pauses(scheduler.reader)


def _pause(scheduler: Scheduler, type_: str, given: Pausing) -> list[Pause]:
    scheduler.pause(address("type", type_), for_s=given.for_s, why=given.reason)
    return pauses(scheduler.reader)


def _resume(scheduler: Scheduler, type_: str) -> bool:
    return scheduler.resume(address("type", type_))
