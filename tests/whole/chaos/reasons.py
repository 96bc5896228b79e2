"""Finds the noted fault that explains why a job ran again, was stopped, or was lost."""

from math import inf

from .app import GRACE_S, WORKER_TIMEOUT_S
from .facts import Job, Run, Window
from .history import RECONNECTS_S, REPORTS_S, History

#: kombu's error for a failed publish. A late-acked task runs again if its retry fails with it.
REFUSED = "OperationalError"

#: Seconds until the guard has ended a prefork child of a killed worker. Until then, the child can start a queued job.
ORPHAN_S = 1.0

#: Delay in seconds, on a busy machine, of a start that its worker allowed before it lost the claim.
STARTS_S = 1.0

#: Max seconds from the death of a pool process until its worker notices it: Celery's pool also polls every 5 s.
SEEN_S = 5.0 + REPORTS_S

#: Seconds from resuming a pool process until it starts a job that was already in its pipe.
PIPE_S = 0.1


#: Reason for another run of a preempted job. It does not explain a loss.
STOPPED = "it was stopped for another tenant"

#: Max seconds from the end of the grace until a preempted process has ended.
FORCED_S = 5.0


def is_stopped(run: Run, history: History) -> bool:
    """Return True if a run ended because it was preempted, or because another worker had claimed the job."""
    if run.was_stopped:
        return True
    return run.outcome in ("SystemExit", "GreenletExit") and why_again(run, history) == "its worker was fenced"


def why_again(run: Run, history: History) -> str | None:
    """Return the noted fault that may have caused another claim of the job of *run*, or None."""
    if death(run, history):
        return "its process was killed"
    if run.outcome == REFUSED:
        return "its retry could not be published"
    until = reported_by(run, history)
    if any(
        window.meets(run.start, until) and _is_its_own(run, window) for window in history.fences.get(run.worker, ())
    ):
        return "its worker was fenced"
    if run.outcome not in ("", "done") and any(window.meets(run.end, run.end) for window in history.is_full):
        return "its end could not be stored"
    # A process that was busy when the server restarted continues with its own state.
    forgotten = next((w for w in history.amnesias if w.meets(run.start - RECONNECTS_S, until)), None)
    if forgotten is not None:
        return f"forgotten: {forgotten.what}"
    left = history.left.get(run.worker, inf)
    if run.start <= left and any(w.meets(left, left + 15) for w in troubles_of(run, history) if w.what != "block"):
        return "its worker left during an outage"
    return STOPPED if _is_to_stop(run, history) else None


def _is_to_stop(run: Run, history: History) -> bool:
    """Return True if *run* stopped when preempted, or was killed, even between its end and its report.

    A process that is suspended when preempted may be killed before it can note the preemption.
    """
    if run.asked == inf:
        is_silent = run.preemptible and run.end == inf
        return is_silent and any(window.meets(run.start, inf) for window in troubles_of(run, history))
    return run.was_stopped or run.asked + GRACE_S - REPORTS_S <= run.end <= run.asked + GRACE_S + FORCED_S


def _is_its_own(run: Run, window: Window) -> bool:
    """Return True if a worker that was silent in *window* could still start the job of *run* in good faith.

    A pool process that was suspended with its worker starts a job that was already in its pipe when it is resumed.
    """
    resumed = window.until - RECONNECTS_S
    was_in_its_pipe = window.what == "stop" and abs(run.start - resumed) < PIPE_S
    return was_in_its_pipe or run.start <= max(window.since, window.latest) + WORKER_TIMEOUT_S + STARTS_S


def death(run: Run, history: History) -> bool:
    """Return True if the process of *run*, or its worker, was killed before the server surely had the end."""
    reported = reported_by(run, history)
    own, workers = history.deaths.get(run.pid), history.deaths.get(run.worker)
    # A kill is noted in advance, so the process may still start a job.
    return any(at is not None and run.start - ORPHAN_S <= at <= reported for at in (own, workers))


def reported_by(run: Run, history: History) -> float:
    """Return the latest time at which the server has the end, delayed by faults of the worker."""
    reported = run.end + REPORTS_S
    # The worker stores the result before it releases the slot.
    for window in sorted((*troubles_of(run, history), *history.results_away), key=lambda window: window.since):
        if window.meets(run.end, reported):
            reported = max(reported, window.until + REPORTS_S)
    return reported


def troubles_of(run: Run, history: History) -> list[Window]:
    return [window for window in history.troubles if window.of in (0, run.worker)]


def disturbed(job: Job, history: History) -> str | None:
    """Return the noted fault that hit a run of *job*, apart from a preemption."""
    return next((why for run in job.runs if (why := why_again(run, history)) not in (None, STOPPED)), None)


def has_succeeded(job: Job, history: History) -> bool:
    """Return True if another attempt of the task had succeeded when the worker of *job* noticed its lost process.

    A pool process can die after it published the retry and before its worker has its end. Celery 5.7 acks the job if
    the task's result is SUCCESS when the worker notices the death, because the retry has already succeeded.
    """
    ends = [run.end for each in history.jobs_of_task[job.task] for run in each.runs if run.outcome == "done"]
    deaths = [at for run in job.runs if (at := history.deaths.get(run.pid)) is not None and run.pid != run.worker]
    return any(end <= at + SEEN_S for end in ends for at in deaths)


def any_death(job: Job, history: History) -> str | None:
    """Return the death that explains an acked job without a start, or None."""
    if job.runs:
        return None
    if any(at >= job.intended for at in history.deaths.values()):
        return "killed before its first line"
    fences = (window for windows in history.fences.values() for window in windows)
    return "its worker was fenced" if any(window.until >= job.intended for window in fences) else None


def is_publish_refused(job: Job, history: History) -> bool:
    """Return True if a publish from this job's task (a retry, a chord's callback) may have been refused."""
    windows = [*history.is_full, *history.troubles]
    return any(window.meets(run.start, run.end) for window in windows for run in job.runs)
