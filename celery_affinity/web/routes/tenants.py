"""Tenants: what each has and waits for, and quotas at run time."""

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from ...client.of_app import settings_of
from ...observe.keyed.tenants import TenantStatus, tenants
from ...rules.cohorts import DEFAULT
from ...rules.tenants import Tenant
from ...server import tenant_quotas
from ...server.fleet import WholeFleet
from ...server.scheduler import Scheduler
from ..described import replies
from ..replies import RefusedError, header_of, reply, rows
from ..site import Site


class QuotaChange(BaseModel):
    """What is to be changed of a quota; *max*: null for no maximum. What is not given stays as it is."""

    model_config = ConfigDict(extra="forbid", strict=True)

    max: int | None = None
    min: int = 0
    weight: int = 1


def add(api: APIRouter, site: Site) -> None:
    own = settings_of(site.app)

    @api.get(
        "/api/tenants",
        summary="Tenants with a quota of their own, and those with the most waiting jobs",
        responses=replies(list[TenantStatus]),
    )
    async def list_tenants() -> Response:
        return rows(await site.with_fleet(WholeFleet.each, _tenants))

    @api.patch(
        "/api/tenants/{name:path}",
        summary="Change the quota of a tenant; * is each tenant that is not named",
        responses=replies(Tenant, 404, text="The quota in force."),
    )
    async def change(name: str, quota: QuotaChange) -> Response:
        fields = quota.model_dump(exclude_unset=True)
        if not fields:
            raise RefusedError(400, "give some of max, min and weight")
        asked = await site.with_fleet(WholeFleet.each, lambda one: tenant_quotas.change(one, own, name, fields))
        return reply(asked.answers[DEFAULT][name], headers=header_of(asked.down))

    @api.delete(
        "/api/tenants/{name:path}",
        summary="Remove the quota that was set for a tenant: that in app.conf counts again, or else that of *",
        responses=replies(list[TenantStatus], 404),
    )
    async def reset(name: str) -> Response:
        asked = await site.with_fleet(WholeFleet.each, lambda scheduler: tenant_quotas.reset(scheduler, own, name))
        if not any(asked.answers.values()):
            raise RefusedError(404, f"no quota is set for {name[:300]!r}")
        return rows(await site.with_fleet(WholeFleet.each, _tenants))


def _tenants(scheduler: Scheduler) -> list[TenantStatus]:
    return tenants(scheduler.reader, scheduler.reader.now_us())
