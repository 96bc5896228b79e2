"""Compares the ledger and Redis with the promises. Every event that no noted fault explains is a violation."""

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from .app import ON_THE_BROKERS_SERVER
from .book import RETURNS_S, Book
from .facts import Job, Run
from .keys import judge_keys, judge_types
from .merging import as_jobs, judge_merging
from .pauses import judge_pauses
from .reasons import (
    REFUSED,
    any_death,
    death,
    disturbed,
    has_succeeded,
    is_publish_refused,
    is_stopped,
    told_by,
    why_again,
)
from .recurring import judge_recurring
from .remains import Remains
from .stops import judge_stops

#: Seconds by which a job with an ETA can start early, since publisher and worker read their clocks in several steps.
EARLY_S = 0.05


@dataclass
class Verdict:
    """The result of checking one storm."""

    accepted: int = 0
    runs: int = 0
    #: Runs of jobs with a key.
    keyed: int = 0
    #: Runs under a limit of their type, or under a reserve.
    limited: int = 0
    #: Pauses that could be checked.
    pauses: int = 0
    #: Calls of merging tasks, and their runs.
    calls: int = 0
    merged_runs: int = 0
    #: Recurring calls published by the server.
    recurring: int = 0
    #: Preempted runs.
    stops: int = 0
    #: Jobs with a hint that succeeded since the start of the server.
    hinted: int = 0
    refused: int = 0
    #: Noted fault -> number of repetitions that it explains.
    again: Counter[str] = field(default_factory=Counter)
    #: Noted fault -> number of losses that it explains.
    lost: Counter[str] = field(default_factory=Counter)
    #: Noted fault -> number of cases in which it explains too many runs of a key, type or class.
    overlaps: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def judge(book: Book, remains: Remains) -> Verdict:
    """Check the jobs with events since the last check."""
    verdict = Verdict()
    jobs = [book.jobs[touched] for touched in book.touched]
    for job in jobs:
        if not job.judged:
            verdict.accepted += job.accepted < inf
            verdict.refused += bool(job.refused)
        _judge_job(job, book, remains, verdict)
        job.judged = True
    verdict.runs = sum(len(job.runs) for job in jobs)
    _judge_chords(book, verdict)
    verdict.calls, verdict.merged_runs, found_of_calls = judge_merging(book, remains, verdict.again)
    jobs += as_jobs(book)
    verdict.keyed, found = judge_keys(jobs, book, verdict.overlaps)
    verdict.limited, found_of_types = judge_types(jobs, book, verdict.overlaps)
    verdict.pauses, found_in_pauses = judge_pauses(jobs, book)
    verdict.recurring, found_of_recurring = judge_recurring(book, remains)
    verdict.hinted = remains.hinted
    verdict.stops, found_of_stops = judge_stops(jobs, book, remains)
    verdict.violations += [*found_of_calls, *found, *found_of_types, *found_in_pauses, *found_of_recurring]
    verdict.violations += found_of_stops
    verdict.violations += [*remains.leaks, *book.complaints]
    for noted in (book.complaints, book.pauses, book.changes):
        noted.clear()
    book.touched.clear()
    return verdict


def _judge_job(job: Job, book: Book, remains: Remains, verdict: Verdict) -> None:
    def violated(what: str) -> None:
        others = [told(each, book, remains) for each in book.jobs_of_task[job.task] if each is not job]
        verdict.violations.append(" | other jobs of the task: ".join([f"{what}: {told(job, book, remains)}", *others]))

    if job.intended == inf:
        violated("ran, but was never published")
    _judge_repetitions(job, book, verdict, violated)
    if any(run.start < job.due - EARLY_S for run in job.runs):
        violated("started before its time")
    outcomes = {run.outcome for run in job.runs if run.end < inf and not is_stopped(run, book)} - {"done", "retried"}
    if outcomes - {REFUSED} or (outcomes and not is_publish_refused(job, book)):
        violated(f"a task ended in {outcomes}")
    _judge_results(job, book, remains, violated)
    if job.refused:
        _judge_refusal(job, book, remains, violated)
    elif job.accepted < inf and not job.ended and not job.judged:
        why = _why_not_ended(job, book, remains)
        if why is None:
            violated("accepted, and neither ended nor pending nor a dead letter")
        elif why == "stuck":
            violated("accepted, and still waiting although workers are free")
        else:
            verdict.lost[why] += 1
    if remains.reasons.get(job.redis_id) == "lost" and job.ended and not disturbed(job, book):
        violated("a dead letter that succeeded, without a fault of its worker")


def _judge_refusal(job: Job, book: Book, remains: Remains, violated) -> None:
    """Only a full or unreachable server may refuse a job, and a full server must not have stored it."""
    windows = [*book.is_full, *book.troubles]
    if not job.refused.startswith(REFUSED) or not any(w.meets(job.intended, job.refused_at) for w in windows):
        violated(f"a publish was refused with {job.refused!r}")
    if "maxmemory" in job.refused and (job.runs or job.redis_id in remains.states):
        violated("refused because of full memory, but it exists")


def _judge_results(job: Job, book: Book, remains: Remains, violated) -> None:
    """A job that expires while waiting must not run or expire early, and its caller must get its end."""
    at = remains.expired.get(job.redis_id)
    if at is not None and at < job.expires - EARLY_S:
        violated(f"expired before its time, at {at:.2f}")
    is_revoked = at is not None or remains.results.get(job.task) == "REVOKED"
    if is_revoked and job.ended and not disturbed(job, book):
        violated("ran to its end, and is revoked")
    if job.judged:
        return  # the result was checked and deleted
    expected = _result_of(job, book, remains)
    stored = remains.results.get(job.task)
    if expected is None or _is_result_lost(job, expected, book):
        return
    if stored != expected:
        violated(f"its result should be {expected}, but is {stored}")
    if book.got.get(job.task, expected) != expected:
        violated(f"its result should be {expected}, but its caller got {book.got[job.task]}")
    _judge_wait(job, book, violated)


def _judge_wait(job: Job, book: Book, violated) -> None:
    """A waiting caller must get its result unless a fault prevents it."""
    window = book.waited.get(job.task)
    if window is not None:
        troubles = (*book.troubles, *book.results_away, *book.is_full)
        late = any(run.end > window.until - 1 for run in job.runs)
        if not late and not any(each.meets(job.intended, window.until) for each in troubles):
            violated(f"its caller got no result: {window.what}")


def _result_of(job: Job, book: Book, remains: Remains) -> str | None:
    """Return the required state of a job's result, or None if any state is possible."""
    done = [run for run in job.runs if run.outcome == "done" and why_again(run, book) is None]
    if done:
        return None if _is_state_of_retry_late(job, done[0], book) else "SUCCESS"
    if job.redis_id in remains.expired and not job.runs:
        return "REVOKED"
    if remains.reasons.get(job.redis_id) == "lost" and not job.ended:
        return "FAILURE"
    return None


def _is_state_of_retry_late(job: Job, done: Run, book: Book) -> bool:
    """Return True if the task's last attempt ended before the previous attempt had stored RETRY.

    Celery publishes a retry before it stores RETRY, which then replaces an earlier SUCCESS, on any broker.
    """
    tries = (run for each in book.jobs_of_task[job.task] if each is not job for run in each.runs)
    return any(run.outcome == "retried" and told_by(run, book) >= done.end for run in tries)


def _is_result_lost(job: Job, state: str, book: Book) -> bool:
    """Return True if a server lost a job's result or was full, or the worker's only attempt to store it failed."""
    is_brokers = job.name in ON_THE_BROKERS_SERVER
    windows = [*book.amnesias, *book.is_full] if is_brokers else book.results_amnesias
    spans = [(run.start, told_by(run, book)) for run in job.runs] or [(job.intended, inf)]
    if any(window.meets(*span) for window in windows for span in spans):
        return True
    breaks = [*book.troubles, *book.results_away]
    return any(
        each.state == state
        and each.worker not in book.retries_results
        and any(window.since <= each.at for window in breaks)
        for each in book.unstored[job.task]
    )


def _is_revoked_by_its_worker(job: Job, book: Book, remains: Remains) -> bool:
    """Return True if a job that expired in its worker has the result REVOKED, or could not get it."""
    away = book.troubles if job.name in ON_THE_BROKERS_SERVER else book.results_away
    is_away = any(window.meets(job.intended, job.expires + RETURNS_S) for window in away)
    return remains.results.get(job.task) == "REVOKED" or is_away or _is_result_lost(job, "REVOKED", book)


def _judge_repetitions(job: Job, book: Book, verdict: Verdict, violated) -> None:
    """Every run but one needs a reason for another run. A later run may have the reason, such as a fenced worker."""
    reasons = [why_again(run, book) for run in job.runs]
    if reasons.count(None) > 1:
        violated("ran again without a reason")
    elif len(reasons) > 1 and not job.judged:
        verdict.again.update([why for why in reasons if why][: len(reasons) - 1])


def _why_not_ended(job: Job, book: Book, remains: Remains) -> str | None:
    """Return the fault that explains why a job has not ended, "stuck", or None."""
    state, reason = remains.states.get(job.redis_id), remains.reasons.get(job.redis_id)
    if state in ("pending", "scheduled", "claimed"):
        return "stuck"
    if state == "expired" or (job.expires < inf and _is_revoked_by_its_worker(job, book, remains)):
        return "expired"
    if reason == "lost":
        return disturbed(job, book) or any_death(job, book)
    if remains.is_done(job.redis_id, max((run.start for run in job.runs), default=inf)) and has_succeeded(job, book):
        return "its retry had succeeded"
    if reason == "rejected" and is_publish_refused(job, book):
        return "its own publish was refused"
    if job.failed and any(death(run, book) for run in job.runs):
        return "killed in the middle"
    if job.failed and not job.runs:
        return any_death(job, book)
    # If all data are lost, the window begins before all events.
    return next((f"forgotten: {w.what}" for w in book.amnesias if w.meets(job.intended, job.accepted)), None)


def _judge_chords(book: Book, verdict: Verdict) -> None:
    for callback, parts in list(book.chords.items()):
        jobs = [job for part in parts for job in book.jobs_of_task[part]]
        if not any(job.ended for job in book.jobs_of_task[callback]):
            # On any broker, Celery does not count a chord part whose process dies after its end.
            reason = next((why for job in jobs if (why := disturbed(job, book) or _any_loss(job, book))), None)
            if reason is None:
                verdict.violations.append(f"all parts of a chord ended, but not its callback {callback}")
            else:
                verdict.lost[f"chord: {reason}"] += 1
        del book.chords[callback]


def _any_loss(job: Job, book: Book) -> str | None:
    if not job.ended:
        return "a part did not end"
    if any(w.meets(run.end, told_by(run, book)) for run in job.runs for w in book.results_away):
        return "the results' server was down"
    return "its publish was refused" if is_publish_refused(job, book) else None


def told(job: Job, book: Book, remains: Remains) -> str:
    """Describe a job in one line."""
    runs = []
    for run in sorted(job.runs, key=lambda run: run.start):
        runs.append(f"run by {run.pid} of worker {run.worker} {run.start:.2f}..{run.end:.2f} {run.outcome}")
        deaths = {"process": book.deaths.get(run.pid), "worker": book.deaths.get(run.worker)}
        runs += [f"that {who} was killed {at:.2f}" for who, at in deaths.items() if at is not None]
    facts = [f"{job.name} {job.redis_id} task {job.task}", f"intended {job.intended:.2f}, accepted {job.accepted:.2f}"]
    facts += [f"due {job.due:.2f}"] if job.due else []
    facts += [f"failed: {job.failed}"] if job.failed else []
    facts.append(f"state {remains.states.get(job.redis_id)}, result {remains.results.get(job.task)}")
    return "; ".join([*facts, *runs])
