"""Types: their state. `pauses` has what pauses and resumes them."""

from fastapi import APIRouter
from starlette.responses import Response

from ...observe.type_status import TypeStatus
from ..described import replies
from ..replies import reply
from ..site import Site
from .fleet import status_of


def add(api: APIRouter, site: Site) -> None:
    @api.get("/api/types", summary="Types with jobs or workers", responses=replies(list[TypeStatus]))
    async def types() -> Response:
        return reply((await site.with_scheduler(status_of, site.bounds)).types)
