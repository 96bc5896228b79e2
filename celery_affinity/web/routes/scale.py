"""How many slots there should be, for whoever starts and ends workers."""

from typing import Annotated

from fastapi import FastAPI, Query
from starlette.responses import Response

from ...observe.scale import scale_of, scales
from ...rules.scaling import TARGET_WAIT_S
from ..replies import reply
from ..site import Site
from .figures import status_of

Target = Annotated[float, Query(gt=0, le=1e9)]


def add(api: FastAPI, site: Site) -> None:
    @api.get("/api/scale", summary="How many slots each group of workers should have")
    async def of_all(target_wait: Target = TARGET_WAIT_S) -> Response:
        return reply(scales(await site.with_scheduler(status_of), target_wait))

    @api.get(
        "/api/scale/{profile:path}", summary="How many slots the workers of exactly these types should have: pdf,excel"
    )
    async def of_profile(profile: str, target_wait: Target = TARGET_WAIT_S) -> Response:
        types = [each for each in profile.split(",") if each]
        return reply(scale_of(await site.with_scheduler(status_of), types, target_wait))
