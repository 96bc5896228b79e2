"""Workers that are other programs: they join, wait for jobs, say that they live, and tell starts and ends."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from celery import Celery
from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ..http_workers import handout, job_end
from ..http_workers import heartbeat as heartbeat_module
from ..http_workers.handout import NOBODY, HandedOutJob
from ..http_workers.heartbeat import ClaimNumber, HeartbeatReply, JobToStop
from ..http_workers.job_end import EndReply, Outcome, ReportedError, StartReply
from ..http_workers.worker import (
    MOST_SLOTS,
    HttpWorker,
    JoinedWorker,
    find_worker,
    forget_worker,
    join_worker,
    leave_worker,
    take_inbox,
    unknown_worker_error,
)
from ..scheduler.messages import LONGEST_FENCE
from ..scheduler.scheduler import Scheduler
from .replies import RefusedError, json_reply, reply_responses
from .site import Site

#: Longest wait for a job, s.
_LONGEST_S = 60

#: Pause, s, between two looks whether a type is still left to Celery's workers, while a worker waits for jobs.
_LEAVES_S = 1.0

_Fence = Annotated[int, Field(strict=True, ge=1, lt=10**LONGEST_FENCE)]
_Id = Annotated[str, Field(strict=True, min_length=1, max_length=255)]
_Secret = Annotated[str, Header(max_length=100, description="The secret of the worker, from its join.")]
_Wait = Annotated[float, Query(ge=0, le=_LONGEST_S)]


class JoinRequest(BaseModel):
    """A worker that joins. *types*: those of whose jobs it gets up to *slots* at a time.

    *priority*: among equally specialised workers, the lower the sooner (``affinity_placement``). *stops*: whether it
    stops jobs, or gives them back, when a reply asks for that: then jobs of tasks with ``preemptible=True`` may be
    stopped there for a tenant below its minimum.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    types: list[str]
    slots: int = 1
    priority: int = 0
    stops: bool = False


class HeartbeatRequest(BaseModel):
    """A heartbeat. *running*: id and fence of each job that the worker has."""

    model_config = ConfigDict(extra="forbid")
    running: list[tuple[_Id, _Fence]] = Field(default_factory=list, max_length=MOST_SLOTS)


class StartRequest(BaseModel):
    """The start of a job."""

    model_config = ConfigDict(extra="forbid")
    fence: _Fence


class JobErrorModel(BaseModel):
    """The error of a job that failed. Celery callers see an exception with this type and message."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: str = Field(max_length=80, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")
    message: str = Field("", max_length=10_000)
    traceback: str | None = Field(None, max_length=100_000)


class EndRequest(BaseModel):
    """The end of a job. *result*: of one that is done. *error*: of one that failed.

    *requeue*: a job that failed is to run again, after a pause, which counts as a requeue; no caller is told. A job
    that is *returned* was not begun: it runs again at once, and that counts as none. One that is *preempted* was
    stopped because a reply asked for that: it runs again at once, and that counts as none either; without such a reply
    it counts as one.
    """

    model_config = ConfigDict(extra="forbid")
    fence: _Fence
    state: Literal["done", "failed", "revoked", "returned", "preempted"]
    result: Any = None
    error: JobErrorModel | None = None
    requeue: bool = Field(False, strict=True)


@dataclass(frozen=True)
class JobsReply:
    """*jobs* for a worker, and jobs that it is to *stop*."""

    jobs: list[HandedOutJob] = field(default_factory=list)
    stop: list[JobToStop] = field(default_factory=list)


@dataclass(frozen=True)
class _Came:
    """What has come for a worker. *leaves_types*: whether it leaves types to Celery's workers for the moment."""

    reply: JobsReply = JobsReply()
    wants_a_tick: bool = False
    leaves_types: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.reply.jobs or self.reply.stop)


@dataclass(frozen=True)
class LeaveReply:
    """A worker that has left. *returned*: jobs that it still held, and that are pending again."""

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
        holds = None if held is None else _fences(held)
        found, came = await site.with_scheduler(_known_and_its, site.app, worker, worker_secret, holds)
        site.dispatcher_duty.begin()
        if came.wants_a_tick:
            site.dispatcher_duty.tick()
        if came.is_empty and wait:
            came = await _waited(site, request, found, wait, came.leaves_types)
        return Response(status_code=204) if came.is_empty else json_reply(came.reply)

    @api.post(
        "/api/workers/{worker}/heartbeat",
        summary="Say that a worker lives, and which jobs it has; the reply says which to stop",
        responses=reply_responses(HeartbeatReply, 404),
    )
    async def heartbeat(worker: str, worker_secret: _Secret, said: HeartbeatRequest) -> Response:
        found = await site.with_scheduler(find_worker, worker)
        found.check(worker_secret)
        site.dispatcher_duty.begin()
        running = [ClaimNumber(*each) for each in said.running]
        answer, wants_a_tick = await site.with_scheduler(heartbeat_module.send_heartbeat, found, running)
        if wants_a_tick:
            site.dispatcher_duty.tick()
        return json_reply(answer)

    @api.delete(
        "/api/workers/{worker}",
        summary="Leave the fleet: jobs that the worker has not ended are pending again",
        responses=reply_responses(LeaveReply, 404),
    )
    async def leave(worker: str, worker_secret: _Secret) -> Response:
        found = await site.with_scheduler(find_worker, worker)
        found.check(worker_secret)
        site.listening.end(worker)
        return json_reply(LeaveReply(worker, await site.with_scheduler(leave_worker, found)))

    @api.post(
        "/api/jobs/{id:path}/start",
        summary="Say that a job starts now",
        responses=reply_responses(StartReply, 404, 409),
    )
    async def start(id: str, worker_secret: _Secret, starting: StartRequest) -> Response:
        return json_reply(
            await site.foreign_with_scheduler(job_end.start_job, site.app, id, starting.fence, worker_secret)
        )

    @api.post(
        "/api/jobs/{id:path}/end",
        summary="Tell the end of a job; a repeated request gets the same reply",
        responses=reply_responses(EndReply, 404, 409, 422),
    )
    async def end(id: str, worker_secret: _Secret, said: EndRequest) -> Response:
        outcome = _outcome(said)
        return json_reply(
            await site.foreign_with_scheduler(job_end.end_job, site.app, id, said.fence, worker_secret, outcome)
        )


def _known(scheduler: Scheduler, worker: str, secret: str) -> HttpWorker:
    """Return a worker, which lives. Raises UnknownWorkerError, WrongSecretError."""
    found = find_worker(scheduler, worker)
    found.check(secret)
    if not scheduler.heartbeat(worker, loop_runs=True):
        forget_worker(scheduler, found)
        raise unknown_worker_error(worker)
    return found


def _known_and_its(
    scheduler: Scheduler, app: Celery, worker: str, secret: str, holds: frozenset[int] | None
) -> tuple[HttpWorker, _Came]:
    """Return a worker, and what has come for it."""
    found = _known(scheduler, worker, secret)
    return found, _taken(scheduler, app, found, holds)


def _taken(
    scheduler: Scheduler, app: Celery, worker: HttpWorker, holds: frozenset[int] | None, first: bytes = NOBODY
) -> _Came:
    """Return what has come for a worker. *first*: what was read of its inbox before."""
    came = take_inbox(scheduler, worker.id, holds)
    if first != NOBODY:
        came.add(first)
    jobs = handout.hand_out_jobs(scheduler, app, worker, came.claims)
    said = JobsReply(jobs, heartbeat_module.stop_orders_in(came.signs))
    return _Came(said, heartbeat_module.wants_a_tick(came.signs), handout.take_left_jobs(scheduler, app, worker))


async def _waited(site: Site, request: Request, worker: HttpWorker, wait_s: float, leaves_types: bool) -> _Came:
    """Return jobs as soon as there are some, and none after *wait_s*, or if the client closes its connection."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        while True:
            line, item = site.listening.begin(worker.id)
            round_s = min(until_s - loop.time(), _LEAVES_S if leaves_types else wait_s)
            try:
                await site.with_scheduler(line.nudge)
                await asyncio.wait((item, gone), timeout=round_s, return_when=asyncio.FIRST_COMPLETED)
                is_over = item.done() or gone.done() or loop.time() >= until_s
            finally:
                site.listening.end(worker.id, item)
            first = item.result() if item.done() else NOBODY
            if first == NOBODY and is_over:
                return _Came()
            came = await site.with_scheduler(_taken, site.app, worker, None, first)
            if came.wants_a_tick:
                site.dispatcher_duty.tick()
            if not came.is_empty:  # else it was a sign, or no job that can be handed out
                return came
            leaves_types = came.leaves_types
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    with suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass


def _fences(held: str) -> frozenset[int]:
    """Return the fencing numbers in *held*, separated by commas. Raises RefusedError."""
    words = [each for each in held.split(",") if each]
    for each in words:
        if not (each.isascii() and each.isdecimal() and len(each) <= LONGEST_FENCE):
            raise RefusedError(400, f"held must be fences, separated by commas, got: {each[:100]!r}")
    return frozenset(map(int, words))


def _outcome(said: EndRequest) -> Outcome:
    """Return the outcome that a body says. Raises RefusedError for parts that do not go together."""
    if (said.state == "failed") != (said.error is not None):
        raise RefusedError(422, f"error must be there if state is 'failed', and only then, got: state {said.state!r}")
    if said.result is not None and said.state != "done":
        raise RefusedError(422, f"result must be there only if state is 'done', got: state {said.state!r}")
    if said.requeue and said.state != "failed":
        raise RefusedError(422, f"requeue must be true only if state is 'failed', got: state {said.state!r}")
    error = None if said.error is None else ReportedError(said.error.type, said.error.message, said.error.traceback)
    return Outcome(said.state, said.result, error, said.requeue)
