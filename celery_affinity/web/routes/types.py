"""Types: their state. `pauses` has what pauses and resumes them."""

from fastapi import APIRouter
from starlette.responses import Response

from ...observe import cohorts
from ...observe.type_status import TypeStatus
from ..described import replies
from ..replies import header_of, reply
from ..site import Site


def add(api: APIRouter, site: Site) -> None:
    @api.get("/api/types", summary="Types with jobs or workers", responses=replies(list[TypeStatus]))
    async def types() -> Response:
        found = await site.with_fleet(cohorts.status, site.bounds)
        return reply(found.types, headers=header_of(found.down))
