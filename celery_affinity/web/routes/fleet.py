"""The state of the fleet, and its metrics for Prometheus."""

from fastapi import APIRouter
from starlette.responses import Response

from ...observe import cohorts
from ...observe.exposition import CONTENT_TYPE
from ...observe.metric_list import as_text
from ...observe.status import Status
from ..broker import BrokerDownError
from ..described import replies, text
from ..replies import reply
from ..site import Site
from ..threads import BusyError


def add(api: APIRouter, site: Site) -> None:
    @api.get(
        "/api/status",
        summary="Types, workers, pauses and counts, as `celery affinity status --json` prints them",
        responses=replies(Status),
    )
    async def status() -> Response:
        return reply(await site.with_fleet(cohorts.status, site.bounds, site.lists))

    @api.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=Response,
        responses=text("text/plain", "The metrics, in the text format of Prometheus."),
    )
    async def metrics() -> Response:
        try:
            found = await site.with_fleet(cohorts.metrics, site.bounds)
        except (BrokerDownError, BusyError):
            found = None  # the metric `up` says so
        return Response(as_text(found), media_type=CONTENT_TYPE)
