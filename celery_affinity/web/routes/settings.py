"""Settings and reserves: those in force, and changing settings for the whole fleet."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ...client.of_app import settings_of
from ...observe.reserves import Reserved
from ...server import runtime_settings
from ...server.runtime_settings import RuntimeSetting
from ...server.scheduler import Scheduler
from ..described import replies
from ..replies import RefusedError, reply
from ..site import Site
from .fleet import status_of


def add(api: APIRouter, site: Site) -> None:
    own = settings_of(site.app)

    @api.get(
        "/api/settings", summary="Settings that can be changed at run time", responses=replies(list[RuntimeSetting])
    )
    async def settings() -> Response:
        return reply(await site.with_scheduler(runtime_settings.read, own))

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

        return reply(await site.with_scheduler(both))

    @api.get("/api/reserves", summary="Reserved slots, by type", responses=replies(list[Reserved]))
    async def reserves() -> Response:
        types = (await site.with_scheduler(status_of, site.bounds)).types
        return reply([reserve for each in types for reserve in each.reserves])
