"""Routes for jobs: get, list, wait for, cancel, move, retry and submit them, alone or in bulk.

A repeated submission returns the same job. A bulk request changes up to 5,000 jobs that match filters.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from ..admin import bulk, job_values, submit
from ..admin.actions import JobFilters, MoveTarget, check_target_cohort
from ..admin.bulk import BulkResult, JobChoice, choose_jobs_in, merge_chosen
from ..admin.job_values import JobValues
from ..admin.jobs import Change
from ..errors import OptionError, QueueFull
from ..reports import cohorts
from ..reports import explain as explain_module
from ..reports.job_lists import MAX_JOBS_READ, JobsPage
from ..reports.jobs import Job, live_jobs, unknown_job
from ..reports.json import as_json
from ..scheduler.cohorts import Cohorts
from ..scheduler.scheduler import Scheduler
from ..schema.values import MAX_DURATION_S
from .broker import BrokerDownError, BusyError
from .replies import Error, RefusedError, error_responses, json_reply, reply_responses, with_more
from .site import Site, check_values_setting

#: Seconds between two queries, and maximum number of requests that wait at the same time.
_PAUSE_S, _MAX_WAITING = 0.2, 1000


class WaitsForJobs:
    """Waits until jobs of *site* end, with one query of the broker for all waiting requests, five times a second."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._waiting: Counter[str] = Counter()
        self._changed = asyncio.Condition()
        self._live: set[str] = set()
        self._poll_task: asyncio.Task[None] | None = None

    async def until_ended(self, id: str, seconds: float) -> None:
        """Return when the job *id* has ended, or after *seconds*."""
        if self._waiting.total() >= _MAX_WAITING:
            raise RefusedError(503, f"{_MAX_WAITING:,} requests are already waiting: try again later")
        self._waiting[id] += 1
        self._live.add(id)
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.create_task(self._poll())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds), self._changed:
                    await self._changed.wait_for(lambda: id not in self._live)
        finally:
            self._waiting[id] -= 1
            if not self._waiting[id]:
                del self._waiting[id]

    async def _poll(self) -> None:
        while self._waiting:
            await asyncio.sleep(_PAUSE_S)
            ids = list(self._waiting)
            with suppress(BrokerDownError, BusyError):  # it may answer the next query
                live = await self._site.with_fleet(_live, ids)
                self._live = (self._live - set(ids)) | live
                async with self._changed:
                    self._changed.notify_all()


def _live(fleet: Cohorts, ids: list[str]) -> set[str]:
    answers = fleet.each(lambda scheduler: live_jobs(scheduler.reader, ids))
    return set().union(*answers.answers.values())


_Limit = Annotated[int, Query(ge=1, le=MAX_JOBS_READ)]
_Age = Annotated[float | None, Query(ge=0, le=MAX_DURATION_S)]
_Wait = Annotated[float, Query(ge=0, le=60)]


class MoveRequest(BaseModel, extra="forbid", strict=True):
    """The new values of a job; null keeps a value. *priority* is 0 to 10, where 10 is the highest, as in lists."""

    type: str | None = None
    priority: int | None = None
    mode: Literal["queued", "on_demand"] | None = None


def add_job_routes(api: APIRouter, site: Site) -> None:
    waits = WaitsForJobs(site)
    changed = reply_responses(Change, 404, 409, status=202)
    job_model = with_more("AskedJob", Job, explanation=explain_module.Explanation | None, values=JobValues | None)

    @api.get(
        "/api/jobs",
        summary="A page of the unfinished jobs and the dead letters; with arguments also these, by job id and name",
        responses=reply_responses(with_more("ListedJobs", JobsPage, arguments=dict[str, dict[str, str]] | None)),
    )
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
        arguments: bool = False,
    ) -> Response:
        check_values_setting(site, request, argument is not None or arguments)
        filters = (stamp, older_than_s, key, newer_than_s, argument, cohort)
        page = await site.ask(site.jobs.list, state, type, task, limit, cursor, *filters)
        return json_reply(await _listed(site, page, arguments))

    @api.get(
        "/api/jobs/{id:path}",
        summary="A job: state, times, worker; optionally explain it, its arguments and result, or wait until it ends",
        responses={
            **reply_responses(job_model),
            **reply_responses(
                job_model | Error, status=404, text="The job is unknown; an error if the id has a line break."
            ),
        },
    )
    async def job(request: Request, id: str, explain: bool = False, wait: _Wait = 0, values: bool = False) -> Response:
        check_values_setting(site, request, values)
        job_state = await get_job_or_404(site, id)
        if wait and job_state.source == "broker" and not job_state.has_ended:
            await waits.until_ended(id, wait)
            job_state = await get_job_or_404(site, id)
        more: dict[str, object] = {}
        if explain and job_state.source != "backend":
            more |= await _explained(site, job_state)
        if values:
            more["values"] = await _values(site, job_state)
        return json_reply({**_dict(job_state), **more}, 200 if job_state.source else 404)

    @api.delete(
        "/api/jobs/{id:path}",
        summary="Revoke a job; with terminate also a running job",
        status_code=202,
        responses=changed,
    )
    async def cancel(id: str, terminate: bool = False) -> Response:
        return _reply_to_change(await site.run_untrusted(_cancel, site, id, terminate))

    @api.patch(
        "/api/jobs/{id:path}",
        summary="Change the type, priority or mode of a waiting job",
        status_code=202,
        responses={**changed, **error_responses(422)},
    )
    async def move(id: str, moving: MoveRequest) -> Response:
        try:
            return _reply_to_change(await site.ask(site.jobs.change, id, move_target_of(moving)))
        except OptionError as exc:
            raise RefusedError(422, str(exc)) from exc

    @api.post("/api/jobs/{id:path}/retry", summary="Run a dead letter again", status_code=202, responses=changed)
    async def retry(id: str) -> Response:
        return _reply_to_change(await site.ask(site.jobs.retry, id))


async def _listed(site: Site, page: JobsPage, arguments: bool) -> object:
    if not arguments:
        return page
    return {**_dict(page), "arguments": await site.with_fleet(job_values.arguments_of_jobs, page.jobs)}


def move_target_of(moving: MoveRequest) -> MoveTarget:
    """Return the move target of a body. Raises OptionError."""
    return MoveTarget(moving.type, moving.priority, None if moving.mode is None else moving.mode == "on_demand")


async def get_job_or_404(site: Site, id: str) -> Job:
    """Return a job like `Jobs.get`. The result backend can block, so it is queried in a separate thread."""
    job = await site.job(id)
    return job if job.source else await site.run_untrusted(job_values.backend_of_job, site.app, id)


async def _explained(site: Site, job: Job) -> dict[str, object]:
    """Return the explanation of a job, or of a message in stock Celery's lists that is not a job."""
    explanation = await site.with_fleet(cohorts.explain_in_all, job.id, None if job.source else site.lists)
    return {"explanation": explanation} if job.source or explanation.in_list else {}


async def _values(site: Site, job: Job) -> JobValues:
    values = await site.with_fleet(job_values.message_arguments, job)
    return await site.run_untrusted(job_values.with_result, site.app, job.id, values)


def _dict(report: object) -> dict[str, object]:
    shown = as_json(report)
    assert isinstance(shown, dict)
    return shown


def _cancel(site: Site, id: str, terminate: bool) -> Change:
    with site.broker.connection() as connection:
        return site.jobs.cancel(id, terminate, connection=connection)


def _reply_to_change(change: Change) -> Response:
    if change.done:
        return json_reply(change, 202)
    raise RefusedError(404 if change.found == "unknown" else 409, f"{change.id[:300]}: {change.note}")


#: Maximum number of jobs that a request changes, and of pages of 1,000 jobs that it reads per state. These take about 2
#: s and 5 s of the 10 s after which a request is abandoned.
_MAX_BULK_JOBS, _MAX_PAGES = 5_000, 50


@dataclass(frozen=True)
class BulkReply:
    """The number of jobs *found*, the number of their *calls*, and the first jobs, *shown*.

    *more* is true if further jobs may match. *done* is the number of changed jobs, or of cancelled calls; *left* counts
    the others by state. *down* has the reasons why nothing was done in some cohorts.
    """

    found: int
    calls: int
    more: bool
    shown: list[Job]
    done: int
    left: dict[str, int]
    warning: str | None
    down: dict[str, str] | None = None


class JobSelector:
    """The jobs that the query selects, by at least one filter in addition to the cohort."""

    def __init__(
        self,
        state: str | None = None,
        type: str | None = None,
        task: str | None = None,
        stamp: str | None = None,
        key: str | None = None,
        older_than_s: Annotated[float | None, Query(gt=0, le=MAX_DURATION_S)] = None,  # 0 would mean all jobs
        newer_than_s: Annotated[float | None, Query(gt=0, le=MAX_DURATION_S)] = None,
        argument: str | None = None,
        cohort: str | None = None,
        dry_run: bool = False,
    ) -> None:
        self.state, self.cohort, self.dry_run = state, cohort, dry_run
        self.filters = JobFilters(None, type, task, stamp, key, older_than_s, newer_than_s, argument)
        if state is None and self.filters.is_empty:
            names = ", ".join(field.name for field in fields(JobFilters))
            raise RefusedError(400, f"name at least one filter: {names}")

    def states(self, accepted: Sequence[str]) -> Sequence[str]:
        if self.state is None:
            return accepted
        if self.state not in accepted:
            raise RefusedError(400, f"state must be one of {', '.join(accepted)}, got: {self.state[:100]!r}")
        return (self.state,)


_Which = Annotated[JobSelector, Depends()]


def add_bulk_routes(api: APIRouter, site: Site) -> None:
    acted = {
        **reply_responses(BulkReply, 409, text="With dry_run: nothing was changed."),
        **reply_responses(BulkReply, status=202),
    }

    @api.delete(
        "/api/jobs", summary="Revoke the jobs that match; dry_run only counts them", status_code=202, responses=acted
    )
    async def cancel(request: Request, which: _Which, terminate: bool = False) -> Response:
        check_values_setting(site, request, which.filters.argument is not None)
        states = which.states(bulk.CANCELLABLE)
        if which.state is None and not terminate:
            states = states[:-1]

        def act(scheduler: Scheduler, choice: JobChoice) -> BulkResult:
            with site.broker.connection() as connection:
                return bulk.cancel_jobs(site.app, scheduler, choice.chosen, terminate, connection=connection)

        return json_reply(await site.run_untrusted(_act, site, which, states, act), 200 if which.dry_run else 202)

    @api.patch(
        "/api/jobs",
        summary="Give the waiting jobs that match another type, priority or mode",
        status_code=202,
        responses={**acted, **error_responses(422)},
    )
    async def move(request: Request, which: _Which, moving: MoveRequest) -> Response:
        check_values_setting(site, request, which.filters.argument is not None)
        states = which.states(bulk.MOVABLE)
        try:
            wish = move_target_of(moving)
        except OptionError as exc:
            raise RefusedError(422, str(exc)) from exc

        def act(scheduler: Scheduler, choice: JobChoice) -> BulkResult:
            return bulk.move_jobs(site.app, scheduler, choice.chosen, wish)

        return json_reply(await site.run_untrusted(_act, site, which, states, act, wish), 200 if which.dry_run else 202)


def _act(
    site: Site,
    which: JobSelector,
    states: Sequence[str],
    act: Callable[[Scheduler, JobChoice], BulkResult],
    wish: MoveTarget | None = None,
) -> BulkReply:
    filters = which.filters
    with site.broker.reach() as fleet:
        names = fleet.serving(filters.type, which.cohort)
        choices = choose_jobs_in(
            fleet, lambda reader: filters.of(site.app, reader), names, states, _MAX_BULK_JOBS, _MAX_PAGES
        )
        choice = merge_chosen(choices, fleet.is_split)
        if choice.more and not choice.chosen:
            raise RefusedError(
                409, f"none of the first {_MAX_PAGES * 1000:,} jobs matches: name the type, or the state"
            )
        check_target_cohort(site.app, wish, [name for name, chosen in choices.answers.items() if chosen.chosen])
        done, lost = (BulkResult(0, {}), {}) if which.dry_run else bulk.run_in_cohorts(fleet, choices, act)
    down = {**choices.down, **lost} or None
    return BulkReply(len(choice.chosen), choice.calls, choice.more, choice.shown, *done, down=down)


#: Options of a call in the OpenAPI description.
_OPTIONS: dict[str, Any] = {
    "properties": {name: {"description": text} for name, (text, _) in submit.ACCEPTED.items()},
    "additionalProperties": False,
}


class TaskCall(BaseModel, extra="forbid", strict=True):
    """A call of a task. *options* are the arguments in `submit.ACCEPTED`, as in `apply_async`."""

    task: str
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict, json_schema_extra=_OPTIONS)


def add_submit_routes(api: APIRouter, site: Site) -> None:
    @api.post(
        "/api/jobs",
        summary="Call a task; with an Idempotency-Key, a repeated request makes no second job",
        status_code=201,
        responses={
            **reply_responses(Job, 404, 409, 422, text="The request was repeated: the job that the first one made."),
            **reply_responses(Job, status=201, text="The job is made."),
        },
    )
    async def submit_job(
        request: Request, call: TaskCall, idempotency_key: Annotated[str | None, Header()] = None
    ) -> Response:
        if not site.allows(call.task):
            raise RefusedError(404, f"no task that can be submitted is named {call.task[:300]!r}")
        try:
            submission = submit.Submission(call.task, call.args, call.kwargs, call.options, idempotency_key)
            ids = submit.SubmittedIds.of(submission.name)
            connect = site.broker.reach, site.broker.connection
            task_id, is_new = await site.run_untrusted(submit.submit_task, site.app, submission, ids, *connect)
        except (submit.IdempotencyKeyReusedError, QueueFull) as exc:
            raise RefusedError(409, str(exc)) from exc
        except OptionError as exc:
            raise RefusedError(422, str(exc)) from exc
        place = f"{request.scope.get('root_path') or ''}/api/jobs/{quote(task_id, safe='')}"
        return json_reply(await _just_submitted(site, task_id), 201 if is_new else 200, {"Location": place})


async def _just_submitted(site: Site, id: str) -> Job:
    """Return the job *id*, which was just published, or only its id if the broker no longer answers."""
    try:
        return await get_job_or_404(site, id)
    except (BrokerDownError, BusyError):
        return unknown_job(id, "submitted; the broker does not answer now")
