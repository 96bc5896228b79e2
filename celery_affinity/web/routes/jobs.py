"""Jobs by id: asked, listed, waited for, cancelled, moved, retried."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from ...errors import OptionError
from ...observe import cohorts, explain
from ...observe.as_json import as_json
from ...observe.job_lists import MOST, JobsPage
from ...observe.jobs import Job
from ...operate import backend
from ...operate import values as values_of
from ...operate.jobs import Change
from ...operate.moving import Move
from ...operate.values import Values
from ...rules.numbers import LONGEST_S
from ...server.fleet import WholeFleet
from ..described import Error, errors, replies, with_more
from ..replies import RefusedError, reply
from ..site import Site
from ..values import check
from ..waits import WaitsForJobs

_Limit = Annotated[int, Query(ge=1, le=MOST)]
_Age = Annotated[float | None, Query(ge=0, le=LONGEST_S)]
_Wait = Annotated[float, Query(ge=0, le=60)]


class Moving(BaseModel):
    """What a job is to have; null: what it has. *priority*: 0 to 10, 10 highest, as lists show it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: str | None = None
    priority: int | None = None
    mode: Literal["queued", "on_demand"] | None = None


def add(api: APIRouter, site: Site) -> None:
    waits = WaitsForJobs(site)
    changed = replies(Change, 404, 409, status=202)
    asked = with_more("AskedJob", Job, explanation=explain.Explanation | None, values=Values | None)

    @api.get("/api/jobs", summary="A page of the unfinished jobs and the dead letters", responses=replies(JobsPage))
    async def jobs(
        request: Request,
        state: str | None = None,
        type: str | None = None,
        task: str | None = None,
        limit: _Limit = 100,
        cursor: str | None = None,
        stamp: str | None = None,
        older_than_s: _Age = None,
        key: str | None = None,
        newer_than_s: _Age = None,
        argument: str | None = None,
        cohort: str | None = None,
    ) -> Response:
        check(site, request, argument is not None)
        filters = (stamp, older_than_s, key, newer_than_s, argument, cohort)
        return reply(await site.ask(site.jobs.list, state, type, task, limit, cursor, *filters))

    @api.get(
        "/api/jobs/{id:path}",
        summary="A job: state, times, worker; optionally explain it, its arguments and result, or wait until it ends",
        responses={
            **replies(asked),
            **replies(asked | Error, status=404, text="The job is unknown; an error if the id has a line break."),
        },
    )
    async def job(request: Request, id: str, explain: bool = False, wait: _Wait = 0, values: bool = False) -> Response:
        check(site, request, values)
        found = await get(site, id)
        if wait and found.source == "broker" and not found.has_ended:
            await waits.until_ended(id, wait)
            found = await get(site, id)
        more: dict[str, object] = {}
        if explain and found.source != "backend":
            more |= await _explained(site, found)
        if values:
            more["values"] = await _values(site, found)
        return reply({**_dict(found), **more}, 200 if found.source else 404)

    @api.delete(
        "/api/jobs/{id:path}",
        summary="Revoke a job; with terminate also a running job",
        status_code=202,
        responses=changed,
    )
    async def cancel(id: str, terminate: bool = False) -> Response:
        return _reply_to_change(await site.foreign(_cancel, site, id, terminate))

    @api.patch(
        "/api/jobs/{id:path}",
        summary="Change the type, priority or mode of a waiting job",
        status_code=202,
        responses={**changed, **errors(422)},
    )
    async def move(id: str, moving: Moving) -> Response:
        try:
            return _reply_to_change(await site.ask(site.jobs.change, id, wish_of(moving)))
        except OptionError as exc:
            raise RefusedError(422, str(exc)) from exc

    @api.post("/api/jobs/{id:path}/retry", summary="Run a dead letter again", status_code=202, responses=changed)
    async def retry(id: str) -> Response:
        return _reply_to_change(await site.ask(site.jobs.retry, id))


def wish_of(moving: Moving) -> Move:
    """Return the wish that a body says. Raises OptionError."""
    return Move(moving.type, moving.priority, None if moving.mode is None else moving.mode == "on_demand")


async def get(site: Site, id: str) -> Job:
    """Return a job as `Jobs.get` does; the result backend, which may hang, is asked in a thread of its own."""
    found = await site.job(id)
    return found if found.source else await site.foreign(backend.job, site.app, id)


async def _explained(site: Site, found: Job) -> dict[str, object]:
    """Return the explanation of a job, or of a message in a list of stock Celery that no job stands for."""
    explanation = await site.with_fleet(cohorts.explain, found.id, None if found.source else site.lists)
    return {"explanation": explanation} if found.source or explanation.in_list else {}


async def _values(site: Site, job: Job) -> Values:
    known = await site.with_fleet(_arguments, job)
    return await site.foreign(values_of.with_result, site.app, job.id, known)


def _arguments(fleet: WholeFleet, job: Job) -> Values:
    return fleet.ask(job.cohort or fleet.names[0], lambda scheduler: values_of.arguments(scheduler.reader, job))


def _dict(found: object) -> dict[str, object]:
    shown = as_json(found)
    assert isinstance(shown, dict)
    return shown


def _cancel(site: Site, id: str, terminate: bool) -> Change:
    with site.broker.connection() as connection:
        return site.jobs.cancel(id, terminate, connection=connection)


def _reply_to_change(change: Change) -> Response:
    if change.done:
        return reply(change, 202)
    if change.found == "unknown":
        raise RefusedError(404, f"{change.id[:300]}: {change.note}")
    raise RefusedError(409, f"{change.id[:300]}: {change.note}")
