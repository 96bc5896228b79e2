"""How many slots there should be, for whoever starts and ends workers."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from ...errors import refuse
from ...observe.scale import Scale, scale_of, scales
from ...rules.scaling import MOST_TARGET_WAIT_S, TARGET_WAIT_S
from ..described import replies
from ..replies import reply
from ..site import Site
from .fleet import status_of

#: Checked by `_check`, whose words name both ends of the range.
_Target = Annotated[float, Query(json_schema_extra={"exclusiveMinimum": 0, "maximum": MOST_TARGET_WAIT_S})]


def add(api: APIRouter, site: Site) -> None:
    @api.get("/api/scale", summary="How many slots each group of workers should have", responses=replies(list[Scale]))
    async def of_all(target_wait: _Target = TARGET_WAIT_S) -> Response:
        _check(target_wait)
        return reply(scales(await site.with_scheduler(status_of), target_wait))

    @api.get(
        "/api/scale/{profile:path}",
        summary="How many slots the workers of exactly these types should have: pdf,excel",
        responses=replies(Scale, 404),
    )
    async def of_profile(profile: str, target_wait: _Target = TARGET_WAIT_S) -> Response:
        _check(target_wait)
        types = [each for each in profile.split(",") if each]
        return reply(scale_of(await site.with_scheduler(status_of), types, target_wait))


def _check(target_wait_s: float) -> None:
    if not 0 < target_wait_s <= MOST_TARGET_WAIT_S:
        accepted = f"a number of seconds above 0, {MOST_TARGET_WAIT_S:,.0f} at most"
        raise refuse("target_wait", accepted, target_wait_s)
