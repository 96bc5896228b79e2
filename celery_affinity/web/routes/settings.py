"""Settings and reserves: those in force, and changing settings for the whole fleet."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ...client.of_app import settings_of
from ...observe import cohorts
from ...observe.reserves import Reserved
from ...server import runtime_settings
from ...server.fleet import WholeFleet
from ...server.runtime_settings import RuntimeSetting
from ...server.scheduler import Scheduler
from ..described import replies
from ..replies import RefusedError, header_of, reply, rows
from ..site import Site


def add(api: APIRouter, site: Site) -> None:
    own = settings_of(site.app)

    @api.get(
        "/api/settings", summary="Settings that can be changed at run time", responses=replies(list[RuntimeSetting])
    )
    async def settings() -> Response:
        return rows(await site.with_fleet(WholeFleet.each, lambda scheduler: runtime_settings.read(scheduler, own)))

    @api.patch(
        "/api/settings",
        summary="Change settings: name -> value; null resets a setting to its value in app.conf",
        responses=replies(list[RuntimeSetting], text="The settings that were changed."),
    )
    async def change(changes: dict[str, Any]) -> Response:
        if not changes:
            raise RefusedError(400, "name at least one setting")
        for name, value in changes.items():
            if not (value is None or isinstance(value, str | int | float)) or isinstance(value, bool):
                raise RefusedError(400, f"{name} must be a text, a number or null, got: {str(value)[:100]!r}")

        def both(scheduler: Scheduler) -> list[RuntimeSetting]:
            typed = {name: str(value) for name, value in changes.items() if value is not None}
            names = [name for name, value in changes.items() if value is None]
            changed = runtime_settings.change(scheduler, own, typed) if typed else []
            return [*changed, *(runtime_settings.reset(scheduler, own, names) if names else [])]

        return rows(await site.with_fleet(WholeFleet.each, both))

    @api.get("/api/reserves", summary="Reserved slots, by type", responses=replies(list[Reserved]))
    async def reserves() -> Response:
        found = await site.with_fleet(cohorts.status, site.bounds)
        kept = [reserve for each in found.types for reserve in each.reserves]
        return reply(kept, headers=header_of(found.down))
