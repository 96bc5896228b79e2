"""A heartbeat of a worker over HTTP: the claims that the worker names are compared with those that the server knows.

What a process does for the fleet whose workers it stands for: it ticks, as each of Celery's workers does.

A fleet may have no other workers. The duty begins with the first request of a worker, and ends with the event loop.
"""

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
from ..scheduler.messages import LONGEST_FENCE, ClaimReport
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

#: Time, s, for which a heartbeat or the reply to a poll may be on its way: what was made before a job came to the
#: worker, or was started there, says nothing of the job. Polls bring a job again whose reply was lost.
_ON_ITS_WAY_S = 60


@dataclass(frozen=True)
class ClaimNumber:
    """A claim: the job, and its fencing number."""

    id: str
    fence: int


@dataclass(frozen=True)
class JobToStop:
    """A job that is to stop. *reason*: "revoked", or "preempted": another job is to have the slot in *grace_s*."""

    id: str
    fence: int
    reason: str
    grace_s: float | None = None


@dataclass(frozen=True)
class HeartbeatReply:
    """The reply to a heartbeat. *gone*: jobs that are not the worker's any more: their ends would be refused."""

    stop: list[JobToStop] = field(default_factory=list)
    gone: list[ClaimNumber] = field(default_factory=list)


def send_heartbeat(
    scheduler: Scheduler, worker: HttpWorker, running: Sequence[ClaimNumber]
) -> tuple[HeartbeatReply, bool]:
    """Compare, and return the reply; and whether a tick is wanted. Raises UnknownWorkerError.

    Claims that the worker does not name are pending again, a while after their claim or their start.
    """
    jobs = claims_of_worker(scheduler.reader, [each.id for each in running])
    now_us = scheduler.reader.now_us()
    reports = [
        ClaimReport(each.id, str(each.fence), max(0, now_us - (its.row.started_us or now_us)))
        for each, its in zip(running, jobs, strict=True)
    ]
    synced = scheduler.sync(worker.id, reports, slots=worker.slots, other=0, draining=False)
    if not synced.known:
        forget_worker(scheduler, worker)
        raise unknown_worker_error(worker.id)
    if synced.asked and (given_back := _given_back(scheduler, synced.asked, now_us)):
        scheduler.requeue(worker.id, given_back, counted=False)
    void = set(synced.void)
    own = [
        its
        for each, its in zip(running, jobs, strict=True)
        if each.id not in void and its.row.fence == str(each.fence) and its.row.worker == worker.id
    ]
    of_own = {its.number for its in own}
    gone = [each for each in running if (each.id, str(each.fence)) not in of_own]
    signs = take_control_messages(scheduler, worker.id)
    revoked = revoke_control(scheduler.reader, own)
    stop = [JobToStop(each.row.job_id, int(each.row.fence), "revoked") for each in own if each.row.job_id in revoked]
    return HeartbeatReply([*stop, *stop_orders_in(signs)], gone), wants_a_tick(signs)


def _given_back(scheduler: Scheduler, asked: Sequence[tuple[str, str]], now_us: int) -> list[tuple[str, str]]:
    """Return those of the claims *asked* about that were not made lately, and have not started lately."""
    since_us = now_us - _ON_ITS_WAY_S * SECOND_US
    rows = [its.row for its in claims_of_worker(scheduler.reader, [job_id for job_id, _ in asked])]
    return [
        claim for claim, row in zip(asked, rows, strict=True) if max(row.claimed_us, row.started_us or 0) < since_us
    ]


def stop_orders_in(signs: Sequence[Sequence[str]]) -> list[JobToStop]:
    """Return the jobs that *signs* of the server say are to stop. What is not known here is passed by."""
    found = []
    for sign in signs:
        match sign:
            case [kind, job_id, fence, grace_ms] if kind == PREEMPT_SIGN and _is_number(fence) and _is_number(grace_ms):
                found.append(JobToStop(job_id, int(fence), "preempted", int(grace_ms) * 1000 / SECOND_US))
    return found


def wants_a_tick(signs: Sequence[Sequence[str]]) -> bool:
    return [TICK_SIGN] in [list(each) for each in signs]


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= LONGEST_FENCE


#: Pause, s, after a broker that did not answer.
_PAUSE_S = 1.0


class DispatcherDuty:
    """A dispatcher for *app*, while the event loop runs that began it. *opened* returns a scheduler of its own."""

    def __init__(self, app: Celery, opened: Callable[[], Scheduler]) -> None:
        self._app, self._opened = app, opened
        self._task: asyncio.Task[None] | None = None
        self._dispatcher: Dispatcher | None = None

    def begin(self) -> None:
        """Begin, unless that is done."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._until_the_loop_ends())

    def tick(self) -> None:
        """Tick now: something is due sooner than the next tick."""
        if self._dispatcher is not None:
            self._dispatcher.wake()

    async def _until_the_loop_ends(self) -> None:
        scheduler = None
        while scheduler is None:
            try:
                scheduler = await asyncio.to_thread(self._opened)
            except Exception:  # the broker is down: requests say so
                await asyncio.sleep(_PAUSE_S)
        chords.install_chord_parts()
        teller = ResultReporter(self._app, f"web@{socket.gethostname()}", lambda: None)
        recurring = RecurringCalls(self._app, teller)
        self._dispatcher = Dispatcher(scheduler, UnrunJobReporter(teller), Ingest(self._app), recurring)
        self._dispatcher.start()
        try:
            await asyncio.Event().wait()
        finally:
            self._dispatcher.stop()
            scheduler.close()
