"""The state of the fleet, its figures for Prometheus, and what probes ask."""

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from ...observe.metrics import StatusCollector
from ...observe.status import Report, Status
from ...server.scheduler import Scheduler
from ..broker import BrokerAwayError
from ..replies import reply
from ..site import Site
from ..threads import BusyError


def status_of(scheduler: Scheduler) -> Status:
    return Report(scheduler.reader).status()


def add(api: FastAPI, site: Site) -> None:
    @api.get("/api/status", summary="Types, workers, pauses and counts: what `celery affinity status --json` prints")
    async def status() -> Response:
        return reply(await site.with_scheduler(status_of))

    @api.get("/metrics", summary="Figures for Prometheus")
    async def metrics() -> Response:
        try:
            found = await site.with_scheduler(status_of)
        except (BrokerAwayError, BusyError):
            found = None  # the figure `up` says so
        registry = CollectorRegistry()
        registry.register(StatusCollector(lambda: found))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @api.get("/healthz", summary="Whether this server lives")
    async def healthz() -> Response:
        return reply({"status": "ok"})

    @api.get("/readyz", summary="Whether the broker answers")
    async def readyz() -> Response:
        await site.with_scheduler(_ping)
        return reply({"status": "ok"})


def _ping(scheduler: Scheduler) -> None:
    scheduler.client.ping()
