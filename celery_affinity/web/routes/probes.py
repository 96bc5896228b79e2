"""What probes ask, without a token: whether this server is alive, and whether its broker answers."""

from dataclasses import dataclass

from fastapi import FastAPI
from starlette.responses import Response

from ...server.scheduler import Scheduler
from ..described import replies
from ..replies import reply
from ..site import Site


@dataclass(frozen=True)
class Alive:
    """The *status* "ok"."""

    status: str = "ok"


def add(api: FastAPI, site: Site) -> None:
    @api.get("/healthz", summary="Whether this web server is alive", responses=replies(Alive))
    async def healthz() -> Response:
        return reply(Alive())

    @api.get("/readyz", summary="Whether the broker answers", responses=replies(Alive, 503))
    async def readyz() -> Response:
        await site.with_scheduler(_ping)
        return reply(Alive())


def _ping(scheduler: Scheduler) -> None:
    scheduler.client.ping()
