"""Routes for HTTP workers, which are other programs: join, wait for jobs, heartbeat, and report starts and ends."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from celery import Celery
from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from ..http_workers import handout, job_end
from ..http_workers import heartbeat as heartbeat_module
from ..http_workers.handout import NOBODY, HandedOutJob
from ..http_workers.heartbeat import ClaimNumber, HeartbeatReply, JobToStop
from ..http_workers.job_end import EndReply, Outcome, ReportedError, StartReply
from ..http_workers.worker import (
    MAX_SLOTS,
    HttpWorker,
    JoinedWorker,
    find_worker,
    forget_worker,
    join_worker,
    leave_worker,
    take_inbox,
    unknown_worker_error,
)
from ..scheduler.messages import MAX_FENCE_LENGTH
from ..scheduler.scheduler import Scheduler
from .replies import RefusedError, json_reply, reply_responses
from .site import Site

#: Maximum seconds to wait for a job.
_MAX_WAIT_S = 60

#: While a worker waits for jobs: seconds between two checks whether a type is still left to Celery workers.
_RECHECK_S = 1.0

_Fence = Annotated[int, Field(strict=True, ge=1, lt=10**MAX_FENCE_LENGTH)]
_Id = Annotated[str, Field(strict=True, min_length=1, max_length=255)]
_Secret = Annotated[str, Header(max_length=100, description="The secret of the worker, from its join.")]
_Wait = Annotated[float, Query(ge=0, le=_MAX_WAIT_S)]


class JoinRequest(BaseModel, extra="forbid", strict=True):
    """A worker that joins. It gets up to *slots* jobs of *types* at the same time.

    *priority* ranks equally specialised workers, the lowest number first (``affinity_placement``). *stops* is true if
    the worker stops or returns jobs when a reply requests that. Jobs of tasks with ``preemptible=True`` can then be
    stopped there for a tenant below its minimum.
    """

    name: str
    types: list[str]
    slots: int = 1
    priority: int = 0
    stops: bool = False


class HeartbeatRequest(BaseModel, extra="forbid"):
    """A heartbeat. *running* has id and fence of each job of the worker."""

    running: list[tuple[_Id, _Fence]] = Field(default_factory=list, max_length=MAX_SLOTS)


class StartRequest(BaseModel, extra="forbid"):
    """The start of a job."""

    fence: _Fence


class JobErrorModel(BaseModel, extra="forbid", strict=True):
    """The error of a failed job. Celery callers see an exception with this type and message."""

    type: str = Field(max_length=80, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")
    message: str = Field("", max_length=10_000)
    traceback: str | None = Field(None, max_length=100_000)


class EndRequest(BaseModel, extra="forbid"):
    """The end of a job: the *result* of a job that is done, or the *error* of a failed job.

    With *requeue*, a failed job runs again after a pause, which counts as a requeue, and no caller is notified. A
    *returned* job was not started: it runs again immediately, which is not counted. A *preempted* job was stopped
    because a reply requested that: it runs again immediately, which is not counted either. Without such a reply, it is
    counted.
    """

    fence: _Fence
    state: Literal["done", "failed", "revoked", "returned", "preempted"]
    result: Any = None
    error: JobErrorModel | None = None
    requeue: bool = Field(False, strict=True)


@dataclass(frozen=True)
class JobsReply:
    """New *jobs* for a worker, and jobs that it must *stop*."""

    jobs: list[HandedOutJob] = field(default_factory=list)
    stop: list[JobToStop] = field(default_factory=list)


@dataclass(frozen=True)
class _Delivery:
    """New data for a worker. *leaves_types* is True if the worker currently leaves types to Celery workers."""

    reply: JobsReply = JobsReply()
    wants_a_tick: bool = False
    leaves_types: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.reply.jobs or self.reply.stop)


@dataclass(frozen=True)
class LeaveReply:
    """A worker that has left. *returned* is the number of jobs that it still held, which are pending again."""

    id: str
    returned: int


def add_http_worker_routes(api: APIRouter, site: Site) -> None:
    @api.post(
        "/api/workers",
        summary="Join the fleet as a worker",
        status_code=201,
        responses=reply_responses(JoinedWorker, status=201, text="The worker has joined."),
    )
    async def join(joining: JoinRequest) -> Response:
        site.dispatcher_duty.begin()
        return json_reply(await site.with_scheduler(partial(join_worker, **joining.model_dump()), site.app), 201)

    @api.get(
        "/api/workers/{worker}/jobs",
        summary="Wait for jobs, up to the worker's free slots",
        responses={**reply_responses(JobsReply, 404), 204: {"description": "No job came."}},
    )
    async def jobs(
        request: Request, worker: str, worker_secret: _Secret, wait: _Wait = 0, held: str | None = None
    ) -> Response:
        fences = None if held is None else _fences(held)
        http_worker, delivery = await site.with_scheduler(_live_delivery, site.app, worker, worker_secret, fences)
        site.dispatcher_duty.begin()
        if delivery.wants_a_tick:
            site.dispatcher_duty.tick()
        if delivery.is_empty and wait:
            delivery = await _wait_for_jobs(site, request, http_worker, wait, delivery.leaves_types)
        return Response(status_code=204) if delivery.is_empty else json_reply(delivery.reply)

    @api.post(
        "/api/workers/{worker}/heartbeat",
        summary="Send a heartbeat with the worker's running jobs; the reply lists the jobs to stop",
        responses=reply_responses(HeartbeatReply, 404),
    )
    async def heartbeat(worker: str, worker_secret: _Secret, beat: HeartbeatRequest) -> Response:
        http_worker = await site.with_scheduler(find_worker, worker, worker_secret)
        site.dispatcher_duty.begin()
        running = [ClaimNumber(*claim) for claim in beat.running]
        answer, wants_a_tick = await site.with_scheduler(heartbeat_module.send_heartbeat, http_worker, running)
        if wants_a_tick:
            site.dispatcher_duty.tick()
        return json_reply(answer)

    @api.delete(
        "/api/workers/{worker}",
        summary="Leave the fleet: jobs that the worker has not ended are pending again",
        responses=reply_responses(LeaveReply, 404),
    )
    async def leave(worker: str, worker_secret: _Secret) -> Response:
        http_worker = await site.with_scheduler(find_worker, worker, worker_secret)
        site.listening.end(worker)
        return json_reply(LeaveReply(worker, await site.with_scheduler(leave_worker, http_worker)))

    @api.post(
        "/api/jobs/{id:path}/start",
        summary="Report that a job starts now",
        responses=reply_responses(StartReply, 404, 409),
    )
    async def start(id: str, worker_secret: _Secret, starting: StartRequest) -> Response:
        claim = (id, starting.fence, worker_secret)
        return json_reply(await site.foreign_with_scheduler(job_end.start_job, site.app, *claim))

    @api.post(
        "/api/jobs/{id:path}/end",
        summary="Report the end of a job; a repeated request gets the same reply",
        responses=reply_responses(EndReply, 404, 409, 422),
    )
    async def end(id: str, worker_secret: _Secret, ending: EndRequest) -> Response:
        claim = (id, ending.fence, worker_secret)
        return json_reply(await site.foreign_with_scheduler(job_end.end_job, site.app, *claim, _outcome(ending)))


def _live_worker(scheduler: Scheduler, worker: str, secret: str) -> HttpWorker:
    """Return a live worker and count this as its heartbeat. Raises UnknownWorkerError and WrongSecretError."""
    http_worker = find_worker(scheduler, worker, secret)
    if not scheduler.heartbeat(worker, loop_runs=True):
        forget_worker(scheduler, http_worker)
        raise unknown_worker_error(worker)
    return http_worker


def _live_delivery(
    scheduler: Scheduler, app: Celery, worker: str, secret: str, holds: frozenset[int] | None
) -> tuple[HttpWorker, _Delivery]:
    """Return a live worker, and its new data."""
    http_worker = _live_worker(scheduler, worker, secret)
    return http_worker, _take_delivery(scheduler, app, http_worker, holds)


def _take_delivery(
    scheduler: Scheduler, app: Celery, worker: HttpWorker, holds: frozenset[int] | None, first: bytes = NOBODY
) -> _Delivery:
    """Take the new data for a worker from its inbox. *first* is an item that was read before."""
    inbox = take_inbox(scheduler, worker.id, holds)
    if first != NOBODY:
        inbox.add(first)
    jobs = handout.hand_out_jobs(scheduler, app, worker, inbox.claims)
    reply = JobsReply(jobs, heartbeat_module.stop_orders_in(inbox.signs))
    return _Delivery(reply, heartbeat_module.wants_a_tick(inbox.signs), handout.take_left_jobs(scheduler, app, worker))


async def _wait_for_jobs(
    site: Site, request: Request, worker: HttpWorker, wait_s: float, leaves_types: bool
) -> _Delivery:
    """Return jobs as soon as there are any; none after *wait_s*, or if the client closes the connection."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    disconnected = asyncio.ensure_future(_disconnected(request))
    try:
        while True:
            line, item = site.listening.begin(worker.id)
            round_s = min(until_s - loop.time(), _RECHECK_S if leaves_types else wait_s)
            try:
                await site.with_scheduler(line.nudge)
                await asyncio.wait((item, disconnected), timeout=round_s, return_when=asyncio.FIRST_COMPLETED)
                is_over = item.done() or disconnected.done() or loop.time() >= until_s
            finally:
                site.listening.end(worker.id, item)
            first = item.result() if item.done() else NOBODY
            if first == NOBODY and is_over:
                return _Delivery()
            delivery = await site.with_scheduler(_take_delivery, site.app, worker, None, first)
            if delivery.wants_a_tick:
                site.dispatcher_duty.tick()
            if not delivery.is_empty:  # otherwise it was a control message, or a job that cannot be handed out
                return delivery
            leaves_types = delivery.leaves_types
    finally:
        disconnected.cancel()


async def _disconnected(request: Request) -> None:
    with suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass


def _fences(held: str) -> frozenset[int]:
    """Return the comma-separated fencing tokens in *held*. Raises RefusedError."""
    fences = [fence for fence in held.split(",") if fence]
    for fence in fences:
        if not (fence.isascii() and fence.isdecimal() and len(fence) <= MAX_FENCE_LENGTH):
            raise RefusedError(400, f"held must be fences, separated by commas, got: {fence[:100]!r}")
    return frozenset(map(int, fences))


def _outcome(ending: EndRequest) -> Outcome:
    """Return the outcome in a body. Raises RefusedError for contradictory fields."""
    if (ending.state == "failed") != (ending.error is not None):
        raise RefusedError(422, f"error must be present if and only if state is 'failed', got: state {ending.state!r}")
    if ending.result is not None and ending.state != "done":
        raise RefusedError(422, f"result must be present only if state is 'done', got: state {ending.state!r}")
    if ending.requeue and ending.state != "failed":
        raise RefusedError(422, f"requeue must be true only if state is 'failed', got: state {ending.state!r}")
    error = None if ending.error is None else ReportedError(**ending.error.model_dump())
    return Outcome(ending.state, ending.result, error, ending.requeue)
