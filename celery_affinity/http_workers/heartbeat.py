"""Heartbeats of workers over HTTP, and a dispatcher in the process that serves such workers."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from celery import Celery

from ..clock import SECOND_US
from ..dispatcher.dispatcher import Dispatcher
from ..dispatcher.ingest import Ingest
from ..dispatcher.recurring import RecurringCalls
from ..results import chords
from ..results.reporter import ResultReporter
from ..results.unrun_jobs import UnrunJobReporter
from ..scheduler.messages import MAX_FENCE_LENGTH, ClaimReport
from ..scheduler.scheduler import Scheduler
from ..schema.constants import PREEMPT_SIGN, TICK_SIGN
from .worker import (
    HttpWorker,
    claims_of_worker,
    forget_worker,
    revoke_control,
    take_control_messages,
    unknown_worker_error,
)

#: Maximum seconds for which a heartbeat or the reply to a poll is in transit. Such a heartbeat does not contain a job
#: that arrived or started since it was created. Polls return a job again if their reply was lost.
_MAX_TRANSIT_S = 60


@dataclass(frozen=True)
class ClaimNumber:
    """A claim: the job, and its fencing token."""

    id: str
    fence: int


@dataclass(frozen=True)
class JobToStop:
    """A job to stop. *reason*: "revoked", or "preempted": another job needs the slot in *grace_s*."""

    id: str
    fence: int
    reason: str
    grace_s: float | None = None


@dataclass(frozen=True)
class HeartbeatReply:
    """The reply to a heartbeat. *gone*: jobs that the worker no longer holds, so their ends would be refused."""

    stop: list[JobToStop] = field(default_factory=list)
    gone: list[ClaimNumber] = field(default_factory=list)


def send_heartbeat(
    scheduler: Scheduler, worker: HttpWorker, running: Sequence[ClaimNumber]
) -> tuple[HeartbeatReply, bool]:
    """Compare the worker's *running* claims with the server's. Return the reply, and True if a tick is requested.

    Claims that the worker does not name become pending again, some time after their claim or start. Raises
    UnknownWorkerError.
    """
    jobs = claims_of_worker(scheduler.reader, [claim.id for claim in running])
    now_us = scheduler.reader.now_us()
    reports = [
        ClaimReport(claim.id, str(claim.fence), max(0, now_us - (job.row.started_us or now_us)))
        for claim, job in zip(running, jobs, strict=True)
    ]
    reply = scheduler.sync(worker.id, reports, slots=worker.slots, other=0, draining=False)
    if not reply.is_registered:
        forget_worker(scheduler, worker)
        raise unknown_worker_error(worker.id)
    if reply.unnamed and (returned := _unnamed_old_claims(scheduler, reply.unnamed, now_us)):
        scheduler.requeue(worker.id, returned, counted=False)
    void = set(reply.void)
    held = [
        job
        for claim, job in zip(running, jobs, strict=True)
        if claim.id not in void and job.row.fence == str(claim.fence) and job.row.worker == worker.id
    ]
    held_numbers = {job.number for job in held}
    gone = [claim for claim in running if (claim.id, str(claim.fence)) not in held_numbers]
    messages = take_control_messages(scheduler, worker.id)
    revoked = revoke_control(scheduler.reader, held)
    stop = [JobToStop(job.row.job_id, int(job.row.fence), "revoked") for job in held if job.row.job_id in revoked]
    return HeartbeatReply([*stop, *stop_orders_in(messages)], gone), wants_a_tick(messages)


def _unnamed_old_claims(scheduler: Scheduler, claims: Sequence[tuple[str, str]], now_us: int) -> list[tuple[str, str]]:
    """Return the claims that the worker did not name, except recently created or started claims."""
    since_us = now_us - _MAX_TRANSIT_S * SECOND_US
    rows = [claim.row for claim in claims_of_worker(scheduler.reader, [job_id for job_id, _ in claims])]
    return [
        claim for claim, row in zip(claims, rows, strict=True) if max(row.claimed_us, row.started_us or 0) < since_us
    ]


def stop_orders_in(messages: Sequence[Sequence[str]]) -> list[JobToStop]:
    """Return the jobs to stop in the server's control messages. Other messages are ignored."""
    jobs = []
    for message in messages:
        match message:
            case [kind, job_id, fence, grace_ms] if (
                kind == PREEMPT_SIGN and _is_decimal(fence) and _is_decimal(grace_ms)
            ):
                jobs.append(JobToStop(job_id, int(fence), "preempted", int(grace_ms) * 1000 / SECOND_US))
    return jobs


def wants_a_tick(messages: Sequence[Sequence[str]]) -> bool:
    return [TICK_SIGN] in [list(message) for message in messages]


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_FENCE_LENGTH


#: Seconds to pause if the broker did not answer.
_RETRY_S = 1.0


class DispatcherDuty:
    """A dispatcher for *app*, which a fleet without Celery workers needs. It ends with the event loop that started it.

    *open_scheduler* returns a dedicated scheduler.
    """

    def __init__(self, app: Celery, open_scheduler: Callable[[], Scheduler]) -> None:
        self._app, self._open_scheduler = app, open_scheduler
        self._task: asyncio.Task[None] | None = None
        self._dispatcher: Dispatcher | None = None

    def begin(self) -> None:
        """Start the dispatcher, unless it is running."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run_dispatcher())

    def tick(self) -> None:
        """Tick now, because something is due sooner than the next tick."""
        if self._dispatcher is not None:
            self._dispatcher.wake()

    async def _run_dispatcher(self) -> None:
        scheduler = None
        while scheduler is None:
            try:
                scheduler = await asyncio.to_thread(self._open_scheduler)
            except Exception:  # the broker is down: requests report it
                await asyncio.sleep(_RETRY_S)
        chords.install_chord_parts()
        reporter = ResultReporter(self._app, f"web@{socket.gethostname()}", lambda: None)
        recurring = RecurringCalls(self._app, reporter)
        self._dispatcher = Dispatcher(scheduler, UnrunJobReporter(reporter), Ingest(self._app), recurring)
        self._dispatcher.start()
        try:
            await asyncio.Event().wait()
        finally:
            self._dispatcher.stop()
            scheduler.close()
