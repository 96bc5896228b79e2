"""Checks pauses: no job of a paused type or key, or no job at all, is claimed during a pause."""

from collections.abc import Iterable

from celery_affinity.schema.values import decode_part

from .facts import Job, Pause, Run
from .history import History


def check_pauses(jobs: Iterable[Job], history: History) -> tuple[int, list[str]]:
    """Return the number of pauses that can be checked, and the runs that were claimed during them.

    A job claimed before a pause may start after it. Fencing tokens distinguish both, unless the server lost some.
    """
    checked = [pause for pause in history.pauses if pause.up_to and not _is_forgotten(pause, history)]
    found = [
        f"claimed while {pause.what} was paused, above fence {pause.above}, {pause.since:.2f}..{pause.until:.2f}: "
        f"{job.name} {job.redis_id} of {job.type}, fence {run.fence}, start {run.start:.2f}"
        for pause in checked
        for job in jobs
        for run in job.runs
        if pause.above < run.fence <= pause.up_to and run.start >= pause.since and _concerns(pause, job, run)
    ]
    return len(checked), found


def _is_forgotten(pause: Pause, history: History) -> bool:
    return any(window.meets(pause.since, pause.until) for window in history.amnesias)


def _concerns(pause: Pause, job: Job, run: Run) -> bool:
    kind, _, name = pause.what.partition(":")
    return pause.what == "*" or decode_part(name) in (run.keys if kind == "key" else [job.type])
