"""Workers: their state, draining them, and having them take jobs again."""

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.responses import Response

from ...observe import cohorts
from ...observe.status import WorkerStatus
from ...remote import incarnation
from ...rules.untrusted import text
from ...server.fleet import WholeFleet
from ..described import replies
from ..replies import RefusedError, header_of, reply
from ..site import Site

#: Time, s, that a worker has for its answer.
_ANSWER_S = 3.0


@dataclass(frozen=True)
class Told:
    """The answer of a *worker*, in words."""

    worker: str
    ok: str


def add(api: APIRouter, site: Site) -> None:
    told = replies(Told, 404, 409, 504, status=202)

    @api.get("/api/workers", summary="Live workers", responses=replies(list[WorkerStatus]))
    async def workers() -> Response:
        found = await site.with_fleet(cohorts.status, site.bounds)
        return reply(found.workers, headers=header_of(found.down))

    @api.post(
        "/api/workers/{name:path}/drain",
        summary="Drain a worker: it takes no new jobs",
        status_code=202,
        responses=told,
    )
    async def drain(name: str) -> Response:
        return await _tell(site, name, "affinity_drain")

    @api.post(
        "/api/workers/{name:path}/resume",
        summary="Resume a worker: it takes jobs again",
        status_code=202,
        responses=told,
    )
    async def resume(name: str) -> Response:
        return await _tell(site, name, "affinity_resume")


async def _tell(site: Site, name: str, command: str) -> Response:
    if name not in await site.with_fleet(_names):
        raise RefusedError(404, f"no live worker is named {name!r}")
    if await site.with_scheduler(incarnation.is_one, name):
        raise RefusedError(
            409, f"worker {name!r} works over HTTP, and takes no commands: it leaves by a DELETE of its own"
        )
    said = await site.foreign(_broadcast, site, name, command)
    if said is None:
        raise RefusedError(504, f"worker {name!r} did not answer within {_ANSWER_S:g} s; it may still do so")
    if "error" in said:
        raise RefusedError(409, text(said["error"]) or "the worker refused, and gave no reason")
    return reply(Told(name, text(said.get("ok")) or ""), 202)


def _names(fleet: WholeFleet) -> set[str]:
    return {each.name for each in cohorts.status(fleet).workers}


def _broadcast(site: Site, name: str, command: str) -> dict[str, object] | None:
    with site.broker.connection() as connection:
        replies = site.app.control.broadcast(
            command, destination=[name], reply=True, timeout=_ANSWER_S, limit=1, connection=connection
        )
    for each in replies or ():
        if isinstance(each, dict) and isinstance(each.get(name), dict):
            return dict(each[name])
    return None
