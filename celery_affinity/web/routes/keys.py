"""Keys, of which a limited number of jobs run together."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from ...observe import cohorts
from ...observe.keyed import in_use
from ...server.fleet import WholeFleet
from ..described import model_of, replies
from ..replies import RefusedError, header_of, reply
from ..site import Site

_Limit = Annotated[int, Query(ge=1, le=1000)]


def add(api: APIRouter, site: Site) -> None:
    @api.get(
        "/api/keys",
        summary="Keys that jobs hold or wait for; * in the pattern stands for any characters",
        responses=replies(model_of(in_use.Found, "FoundKeys")),
    )
    async def keys(pattern: str = "*", limit: _Limit = 100) -> Response:
        asked = await site.with_fleet(WholeFleet.each, lambda scheduler: in_use.find(scheduler.reader, pattern, limit))
        return reply(cohorts.found(asked), headers=header_of(asked.down))

    @api.get(
        "/api/keys/{key:path}",
        summary="A key: its limit, its holders, and the jobs that wait for it",
        responses=replies(model_of(in_use.KeyDetails, "ShownKey"), 404),
    )
    async def key(key: str) -> Response:
        found = await site.with_fleet(WholeFleet.first, lambda scheduler: in_use.show(scheduler.reader, key))
        if found is None:
            raise RefusedError(404, f"no job holds the key {key[:300]!r} or waits for it")
        cohort, details = found
        return reply(replace(details, key=replace(details.key, cohort=cohort)) if site.is_split else details)
