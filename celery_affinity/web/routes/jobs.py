"""Jobs by id: asked, listed, waited for, cancelled, retried."""

from typing import Annotated

from fastapi import FastAPI, Query
from starlette.responses import Response

from ...observe import explain
from ...observe.as_json import as_json
from ...observe.job_lists import MOST
from ...observe.jobs import Job
from ...operate import backend
from ...operate.jobs import Change
from ...server.scheduler import Scheduler
from ..replies import RefusedError, reply
from ..site import Site
from ..waits import Waits

_Limit = Annotated[int, Query(ge=1, le=MOST)]
_Wait = Annotated[float, Query(ge=0, le=60)]


def add(api: FastAPI, site: Site) -> None:
    waits = Waits(site)

    @api.get("/api/jobs", summary="A page of the jobs that have not ended, and of the dead letters")
    async def jobs(
        state: str | None = None,
        type: str | None = None,
        task: str | None = None,
        limit: _Limit = 100,
        cursor: str | None = None,
    ) -> Response:
        return reply(await site.ask(site.jobs.list, state, type, task, limit, cursor))

    @api.get("/api/jobs/{id:path}", summary="A job: state, times, worker; its whole explanation; wait until it ends")
    async def job(id: str, explain: bool = False, wait: _Wait = 0) -> Response:
        found = await get(site, id)
        if wait and found.source == "broker" and not found.has_ended:
            await waits.until_ended(id, wait)
            found = await get(site, id)
        if explain and found.source == "broker":
            whole = await site.with_scheduler(_explained, found.id)
            return reply({**_dict(found), "explanation": whole})
        return reply(found, 200 if found.source else 404)

    @api.delete("/api/jobs/{id:path}", summary="Revoke a job; with terminate also one that runs", status_code=202)
    async def cancel(id: str, terminate: bool = False) -> Response:
        return _of_change(await site.foreign(_cancel, site, id, terminate))

    @api.post("/api/jobs/{id:path}/retry", summary="Have a dead letter run again", status_code=202)
    async def retry(id: str) -> Response:
        return _of_change(await site.ask(site.jobs.retry, id))


async def get(site: Site, id: str) -> Job:
    """Return a job as `Jobs.get` does; the result backend, which may hang, is asked in a thread of its own."""
    found = await site.job(id)
    return found if found.source else await site.foreign(backend.job, site.app, id)


def _explained(scheduler: Scheduler, id: str) -> explain.Explanation:
    return explain.explain(scheduler.reader, id)


def _dict(found: object) -> dict[str, object]:
    shown = as_json(found)
    assert isinstance(shown, dict)
    return shown


def _cancel(site: Site, id: str, terminate: bool) -> Change:
    with site.broker.connection() as connection:
        return site.jobs.cancel(id, terminate, connection=connection)


def _of_change(change: Change) -> Response:
    if change.done:
        return reply(change, 202)
    if change.found == "unknown":
        raise RefusedError(404, f"{change.id[:300]}: {change.note}")
    raise RefusedError(409, f"{change.id[:300]}: {change.note}")
