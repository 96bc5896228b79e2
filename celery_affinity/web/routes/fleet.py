"""The state of the fleet, and its metrics for Prometheus."""

from collections.abc import Mapping

from fastapi import APIRouter
from starlette.responses import Response

from ...observe.exposition import CONTENT_TYPE
from ...observe.metric_list import as_text
from ...observe.metrics import Metrics, read_metrics
from ...observe.status import Report, Status
from ...rules.bounds import Bound
from ...server.scheduler import Scheduler
from ..broker import BrokerDownError
from ..described import replies, text
from ..replies import reply
from ..site import Site
from ..threads import BusyError


def status_of(scheduler: Scheduler, bounds: Mapping[str, int | Bound] | None = None) -> Status:
    return Report(scheduler.reader, bounds).status()


def _metrics_of(scheduler: Scheduler, bounds: Mapping[str, int | Bound]) -> Metrics:
    return read_metrics(scheduler.reader, bounds)


def add(api: APIRouter, site: Site) -> None:
    @api.get(
        "/api/status",
        summary="Types, workers, pauses and counts, as `celery affinity status --json` prints them",
        responses=replies(Status),
    )
    async def status() -> Response:
        return reply(await site.with_scheduler(status_of, site.bounds))

    @api.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=Response,
        responses=text("text/plain", "The metrics, in the text format of Prometheus."),
    )
    async def metrics() -> Response:
        try:
            found = await site.with_scheduler(_metrics_of, site.bounds)
        except (BrokerDownError, BusyError):
            found = None  # the metric `up` says so
        return Response(as_text(found), media_type=CONTENT_TYPE)
