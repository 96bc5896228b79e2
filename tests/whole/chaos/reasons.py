"""Finds the noted fault that explains why a job ran again, was stopped, or was lost."""

from math import inf

from .app import GRACE_S, WORKER_TIMEOUT_S
from .book import RETURNS_S, TELLS_S, Book
from .facts import Job, Run, Window

#: Error that a caller sees of a failed publish, kombu's own. A late-acked task runs again if it is its retry's.
REFUSED = "OperationalError"

#: Time, s, until the guard has ended a prefork child whose worker was killed: before, the child may begin a given job.
ORPHAN_S = 1.0

#: Delay, s, on a busy machine, of the start of a task that its worker still held for its own.
STARTS_S = 1.0

#: Longest time, s, from the death of a pool process until its worker sees the death: Celery's pool looks every 5 s, in
#: case the event escapes it.
SEEN_S = 5.0 + TELLS_S

#: Time, s, from the moment a pool process goes on until the start of the job given to the process before.
PIPE_S = 0.1


#: Why a job runs again whose run another tenant's job took the slot of. It explains no loss.
STOPPED = "it was stopped for another tenant"

#: Time, s, from the end of the grace until a process that is to stop has surely ended.
FORCED_S = 5.0


def is_stopped(run: Run, book: Book) -> bool:
    """Whether a run ended like a run that its worker stops: it was to, or another worker had the job by then."""
    if run.was_stopped:
        return True
    return run.outcome in ("SystemExit", "GreenletExit") and why_again(run, book) == "its worker was fenced"


def why_again(run: Run, book: Book) -> str | None:
    """Return the noted fault because of which the job of *run* may have been given out again, or None."""
    if death(run, book):
        return "its process was killed"
    if run.outcome == REFUSED:
        return "its retry could not be published"
    until = told_by(run, book)
    if any(window.meets(run.start, until) and _is_its_own(run, window) for window in book.fences.get(run.worker, ())):
        return "its worker was fenced"
    if run.outcome not in ("", "done") and any(window.meets(run.end, run.end) for window in book.is_full):
        return "its end could not be stored"
    # A process in the middle of something when the server came back goes on by what the process knows.
    forgotten = next((w for w in book.amnesias if w.meets(run.start - RETURNS_S, until)), None)
    if forgotten is not None:
        return f"forgotten: {forgotten.what}"
    left = book.left.get(run.worker, inf)
    if run.start <= left and any(w.meets(left, left + 15) for w in troubles_of(run, book) if w.what != "block"):
        return "its worker left during an outage"
    return STOPPED if _is_to_stop(run, book) else None


def _is_to_stop(run: Run, book: Book) -> bool:
    """Whether *run* stopped since it was to, or was stopped by force, also between its end and the word of it.

    A process that is suspended when it is to stop may be ended before it can note anything.
    """
    if run.asked == inf:
        is_silent = run.preemptible and run.end == inf
        return is_silent and any(window.meets(run.start, inf) for window in troubles_of(run, book))
    return run.was_stopped or run.asked + GRACE_S - TELLS_S <= run.end <= run.asked + GRACE_S + FORCED_S


def _is_its_own(run: Run, window: Window) -> bool:
    """Whether a worker that was silent in *window* could still take the job of *run* for its own when it started.

    A pool process that is stopped with its worker cannot tell: a job given just before starts when the process goes on.
    """
    resumed = window.until - RETURNS_S
    was_in_its_pipe = window.what == "stop" and abs(run.start - resumed) < PIPE_S
    return was_in_its_pipe or run.start <= max(window.since, window.latest) + WORKER_TIMEOUT_S + STARTS_S


def death(run: Run, book: Book) -> bool:
    """Whether the process of *run*, or its worker, was killed before the server can have been told of the end."""
    told = told_by(run, book)
    own, workers = book.deaths.get(run.pid), book.deaths.get(run.worker)
    # A kill is noted before it is done: the process may start something yet.
    return any(at is not None and run.start - ORPHAN_S <= at <= told for at in (own, workers))


def told_by(run: Run, book: Book) -> float:
    """Return when the server knows of the end at the latest: troubles of the worker put that off."""
    told = run.end + TELLS_S
    # The result is stored before the server is told.
    for window in sorted((*troubles_of(run, book), *book.results_away), key=lambda window: window.since):
        if window.meets(run.end, told):
            told = max(told, window.until + TELLS_S)
    return told


def troubles_of(run: Run, book: Book) -> list[Window]:
    return [window for window in book.troubles if window.of in (0, run.worker)]


def disturbed(job: Job, book: Book) -> str | None:
    """Return the noted fault that met a run of *job*; a stop for another tenant is none."""
    return next((why for run in job.runs if (why := why_again(run, book)) not in (None, STOPPED)), None)


def has_succeeded(job: Job, book: Book) -> bool:
    """Whether the task of *job* had succeeded, by another try, when the worker of *job* saw that its process was lost.

    A pool process may die after it has published the retry, and before its worker knows. Celery 5.7 acks the job if the
    task's result is SUCCESS when the death is seen: the retry, or its next one, has brought the task to its end.
    """
    ends = [run.end for each in book.jobs_of_task[job.task] for run in each.runs if run.outcome == "done"]
    deaths = [at for run in job.runs if (at := book.deaths.get(run.pid)) is not None and run.pid != run.worker]
    return any(end <= at + SEEN_S for end in ends for at in deaths)


def any_death(job: Job, book: Book) -> str | None:
    """Explain a job that was acked, and whose process died before writing a start."""
    if job.runs:
        return None
    if any(at >= job.intended for at in book.deaths.values()):
        return "killed before its first line"
    fences = (window for windows in book.fences.values() for window in windows)
    return "its worker was fenced" if any(window.until >= job.intended for window in fences) else None


def is_publish_refused(job: Job, book: Book) -> bool:
    """Whether a publish out of this job's task (a retry, a chord's callback) may have been refused."""
    windows = [*book.is_full, *book.troubles]
    return any(window.meets(run.start, run.end) for window in windows for run in job.runs)
