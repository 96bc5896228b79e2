"""Types: their state. `pauses` has what pauses and resumes them."""

from fastapi import FastAPI
from starlette.responses import Response

from ..replies import reply
from ..site import Site
from .figures import status_of


def add(api: FastAPI, site: Site) -> None:
    @api.get("/api/types", summary="Types with jobs or workers")
    async def types() -> Response:
        return reply((await site.with_scheduler(status_of, site.bounds)).types)
