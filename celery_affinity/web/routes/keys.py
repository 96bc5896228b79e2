"""Keys, of which a limited number of jobs run together."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from ...observe.keyed import in_use
from ...server.scheduler import Scheduler
from ..described import model_of, replies
from ..replies import RefusedError, reply
from ..site import Site

_Limit = Annotated[int, Query(ge=1, le=1000)]


def add(api: APIRouter, site: Site) -> None:
    @api.get(
        "/api/keys",
        summary="Keys that jobs hold or wait for; * in the pattern stands for any characters",
        responses=replies(model_of(in_use.Found, "FoundKeys")),
    )
    async def keys(pattern: str = "*", limit: _Limit = 100) -> Response:
        return reply(await site.with_scheduler(_find, pattern, limit))

    @api.get(
        "/api/keys/{key:path}",
        summary="A key: its limit, its holders, and the jobs that wait for it",
        responses=replies(model_of(in_use.KeyDetails, "ShownKey"), 404),
    )
    async def key(key: str) -> Response:
        found = await site.with_scheduler(_show, key)
        if found is None:
            raise RefusedError(404, f"no job holds the key {key[:300]!r} or waits for it")
        return reply(found)


def _find(scheduler: Scheduler, pattern: str, limit: int) -> in_use.Found:
    return in_use.find(scheduler.reader, pattern, limit)


def _show(scheduler: Scheduler, key: str) -> in_use.KeyDetails | None:
    return in_use.show(scheduler.reader, key)
