"""How many slots there should be, for whoever starts and ends workers."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from ...errors import refuse
from ...observe import cohorts
from ...observe.scale import Scale, one_scale
from ...observe.status import Report
from ...rules.scaling import MOST_TARGET_WAIT_S, TARGET_WAIT_S
from ...server.fleet import WholeFleet
from ..described import replies
from ..replies import reply
from ..site import Site

#: Checked by `_check`, whose words name both ends of the range.
_Target = Annotated[float, Query(json_schema_extra={"exclusiveMinimum": 0, "maximum": MOST_TARGET_WAIT_S})]


def add(api: APIRouter, site: Site) -> None:
    @api.get("/api/scale", summary="How many slots each group of workers should have", responses=replies(list[Scale]))
    async def of_all(target_wait: _Target = TARGET_WAIT_S) -> Response:
        _check(target_wait)
        return reply(await site.with_fleet(_scale, [], target_wait))

    @api.get(
        "/api/scale/{profile:path}",
        summary="How many slots the workers of exactly these types should have: pdf,excel",
        responses=replies(Scale, 404),
    )
    async def of_profile(profile: str, target_wait: _Target = TARGET_WAIT_S) -> Response:
        _check(target_wait)
        types = [each for each in profile.split(",") if each]
        return reply(one_scale(await site.with_fleet(_scale, types, target_wait), types))


def _scale(fleet: WholeFleet, types: list[str], target_wait_s: float) -> list[Scale]:
    asked = fleet.each(lambda scheduler: Report(scheduler.reader).status())
    return cohorts.scale(fleet, asked, types, target_wait_s)


def _check(target_wait_s: float) -> None:
    if not 0 < target_wait_s <= MOST_TARGET_WAIT_S:
        accepted = f"a number of seconds above 0, {MOST_TARGET_WAIT_S:,.0f} at most"
        raise refuse("target_wait", accepted, target_wait_s)
