"""A heartbeat of a worker over HTTP: the claims that the worker names are compared with those that the server knows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..clock import SECOND_US
from ..rules.protocol import PREEMPT_SIGN, TICK_SIGN
from ..server.arguments import ClaimReport
from ..server.replies import LONGEST_FENCE
from ..server.scheduler import Scheduler
from . import claims, incarnation
from .incarnation import Incarnation

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


def heartbeat(scheduler: Scheduler, worker: Incarnation, running: Sequence[ClaimNumber]) -> tuple[HeartbeatReply, bool]:
    """Compare, and return the reply; and whether a tick is wanted. Raises UnknownWorkerError.

    Claims that the worker does not name are pending again, a while after their claim or their start.
    """
    jobs = claims.held(scheduler.reader, [each.id for each in running])
    now_us = scheduler.reader.now_us()
    reports = [
        ClaimReport(each.id, str(each.fence), max(0, now_us - (its.row.started_us or now_us)))
        for each, its in zip(running, jobs, strict=True)
    ]
    synced = scheduler.sync(worker.id, reports, slots=worker.slots, other=0, draining=False)
    if not synced.known:
        incarnation.forget(scheduler, worker)
        raise incarnation.unknown(worker.id)
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
    signs = claims.take_signs(scheduler, worker.id)
    revoked = claims.revoked(scheduler.reader, own)
    stop = [JobToStop(each.row.job_id, int(each.row.fence), "revoked") for each in own if each.row.job_id in revoked]
    return HeartbeatReply([*stop, *stops_in(signs)], gone), wants_a_tick(signs)


def _given_back(scheduler: Scheduler, asked: Sequence[tuple[str, str]], now_us: int) -> list[tuple[str, str]]:
    """Return those of the claims *asked* about that were not made lately, and have not started lately."""
    since_us = now_us - _ON_ITS_WAY_S * SECOND_US
    rows = [its.row for its in claims.held(scheduler.reader, [job_id for job_id, _ in asked])]
    return [
        claim for claim, row in zip(asked, rows, strict=True) if max(row.claimed_us, row.started_us or 0) < since_us
    ]


def stops_in(signs: Sequence[Sequence[str]]) -> list[JobToStop]:
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
