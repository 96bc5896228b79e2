"""Compares the ledger and Redis with the promises. Every event that no noted fault explains is a violation."""

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from .app import ON_THE_BROKERS_SERVER
from .facts import Job, Run
from .history import RECONNECTS_S, History
from .keys import check_keys, check_types
from .merging import as_jobs, check_merging
from .pauses import check_pauses
from .reasons import (
    REFUSED,
    any_death,
    death,
    disturbed,
    has_succeeded,
    is_publish_refused,
    is_stopped,
    reported_by,
    why_again,
)
from .recurring import check_recurring
from .remains import Remains
from .stops import check_stops

#: A job with an ETA can start this many seconds early, since publisher and worker read their clocks in several steps.
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


def check(history: History, remains: Remains) -> Verdict:
    """Check the jobs with events since the last check."""
    verdict = Verdict()
    jobs = [history.jobs[touched] for touched in history.touched]
    for job in jobs:
        if not job.checked:
            verdict.accepted += job.accepted < inf
            verdict.refused += bool(job.refused)
        _check_job(job, history, remains, verdict)
        job.checked = True
    verdict.runs = sum(len(job.runs) for job in jobs)
    _check_chords(history, verdict)
    verdict.calls, verdict.merged_runs, found_of_calls = check_merging(history, remains, verdict.again)
    jobs += as_jobs(history)
    verdict.keyed, found = check_keys(jobs, history, verdict.overlaps)
    verdict.limited, found_of_types = check_types(jobs, history, verdict.overlaps)
    verdict.pauses, found_in_pauses = check_pauses(jobs, history)
    verdict.recurring, found_of_recurring = check_recurring(history, remains)
    verdict.hinted = remains.hinted
    verdict.stops, found_of_stops = check_stops(jobs, history, remains)
    verdict.violations += [*found_of_calls, *found, *found_of_types, *found_in_pauses, *found_of_recurring]
    verdict.violations += found_of_stops
    verdict.violations += [*remains.leaks, *history.complaints]
    for noted in (history.complaints, history.pauses, history.changes):
        noted.clear()
    history.touched.clear()
    return verdict


def _check_job(job: Job, history: History, remains: Remains, verdict: Verdict) -> None:
    def violated(what: str) -> None:
        others = [described(each, history, remains) for each in history.jobs_of_task[job.task] if each is not job]
        lines = [f"{what}: {described(job, history, remains)}", *others]
        verdict.violations.append(" | other jobs of the task: ".join(lines))

    if job.intended == inf:
        violated("ran, but was never published")
    _check_repetitions(job, history, verdict, violated)
    if any(run.start < job.due - EARLY_S for run in job.runs):
        violated("started before its time")
    outcomes = {run.outcome for run in job.runs if run.end < inf and not is_stopped(run, history)} - {"done", "retried"}
    if outcomes - {REFUSED} or (outcomes and not is_publish_refused(job, history)):
        violated(f"a task ended in {outcomes}")
    _check_results(job, history, remains, violated)
    if job.refused:
        _check_refusal(job, history, remains, violated)
    elif job.accepted < inf and not job.ended and not job.checked:
        why = _why_not_ended(job, history, remains)
        if why is None:
            violated("accepted, and neither ended nor pending nor a dead letter")
        elif why == "stuck":
            violated("accepted, and still waiting although workers are free")
        else:
            verdict.lost[why] += 1
    if remains.reasons.get(job.redis_id) == "lost" and job.ended and not disturbed(job, history):
        violated("a dead letter that succeeded, without a fault of its worker")


def _check_refusal(job: Job, history: History, remains: Remains, violated) -> None:
    """Only a full or unreachable server may refuse a job, and a full server must not have stored it."""
    windows = [*history.is_full, *history.troubles]
    if not job.refused.startswith(REFUSED) or not any(w.meets(job.intended, job.refused_at) for w in windows):
        violated(f"a publish was refused with {job.refused!r}")
    if "maxmemory" in job.refused and (job.runs or job.redis_id in remains.states):
        violated("refused because of full memory, but it exists")


def _check_results(job: Job, history: History, remains: Remains, violated) -> None:
    """A job that expires while waiting must not run or expire early, and its caller must get its end."""
    at = remains.expired.get(job.redis_id)
    if at is not None and at < job.expires - EARLY_S:
        violated(f"expired before its time, at {at:.2f}")
    is_revoked = at is not None or remains.results.get(job.task) == "REVOKED"
    if is_revoked and job.ended and not disturbed(job, history):
        violated("ran to its end, and is revoked")
    if job.checked:
        return  # the result was checked and deleted
    expected = _result_of(job, history, remains)
    stored = remains.results.get(job.task)
    if expected is None or _is_result_lost(job, expected, history):
        return
    if stored != expected:
        violated(f"its result should be {expected}, but is {stored}")
    if history.got.get(job.task, expected) != expected:
        violated(f"its result should be {expected}, but its caller got {history.got[job.task]}")
    _check_wait(job, history, violated)


def _check_wait(job: Job, history: History, violated) -> None:
    """A waiting caller must get its result unless a fault prevents it."""
    window = history.waited.get(job.task)
    if window is not None:
        troubles = (*history.troubles, *history.results_away, *history.is_full)
        late = any(run.end > window.until - 1 for run in job.runs)
        if not late and not any(each.meets(job.intended, window.until) for each in troubles):
            violated(f"its caller got no result: {window.what}")


def _result_of(job: Job, history: History, remains: Remains) -> str | None:
    """Return the required state of a job's result, or None if any state is possible."""
    done = [run for run in job.runs if run.outcome == "done" and why_again(run, history) is None]
    if done:
        return None if _is_state_of_retry_late(job, done[0], history) else "SUCCESS"
    if job.redis_id in remains.expired and not job.runs:
        return "REVOKED"
    if remains.reasons.get(job.redis_id) == "lost" and not job.ended:
        return "FAILURE"
    return None


def _is_state_of_retry_late(job: Job, done: Run, history: History) -> bool:
    """Return True if the task's last attempt ended before the previous attempt had stored RETRY.

    Celery publishes a retry before it stores RETRY, which then replaces an earlier SUCCESS, on any broker.
    """
    tries = (run for each in history.jobs_of_task[job.task] if each is not job for run in each.runs)
    return any(run.outcome == "retried" and reported_by(run, history) >= done.end for run in tries)


def _is_result_lost(job: Job, state: str, history: History) -> bool:
    """Return True if a server lost a job's result or was full, or the worker's only attempt to store it failed."""
    is_brokers = job.name in ON_THE_BROKERS_SERVER
    windows = [*history.amnesias, *history.is_full] if is_brokers else history.results_amnesias
    spans = [(run.start, reported_by(run, history)) for run in job.runs] or [(job.intended, inf)]
    if any(window.meets(*span) for window in windows for span in spans):
        return True
    breaks = [*history.troubles, *history.results_away]
    return any(
        each.state == state
        and each.worker not in history.retries_results
        and any(window.since <= each.at for window in breaks)
        for each in history.unstored[job.task]
    )


def _is_revoked_by_its_worker(job: Job, history: History, remains: Remains) -> bool:
    """Return True if a job that expired in its worker has the result REVOKED, or could not get it."""
    away = history.troubles if job.name in ON_THE_BROKERS_SERVER else history.results_away
    is_away = any(window.meets(job.intended, job.expires + RECONNECTS_S) for window in away)
    return remains.results.get(job.task) == "REVOKED" or is_away or _is_result_lost(job, "REVOKED", history)


def _check_repetitions(job: Job, history: History, verdict: Verdict, violated) -> None:
    """Every run but one needs a reason for another run. A later run may have the reason, such as a fenced worker."""
    reasons = [why_again(run, history) for run in job.runs]
    if reasons.count(None) > 1:
        violated("ran again without a reason")
    elif len(reasons) > 1 and not job.checked:
        verdict.again.update([why for why in reasons if why][: len(reasons) - 1])


def _why_not_ended(job: Job, history: History, remains: Remains) -> str | None:
    """Return the fault that explains why a job has not ended, "stuck", or None."""
    state, reason = remains.states.get(job.redis_id), remains.reasons.get(job.redis_id)
    if state in ("pending", "scheduled", "claimed"):
        return "stuck"
    if state == "expired" or (job.expires < inf and _is_revoked_by_its_worker(job, history, remains)):
        return "expired"
    if reason == "lost":
        return disturbed(job, history) or any_death(job, history)
    if remains.is_done(job.redis_id, max((run.start for run in job.runs), default=inf)) and has_succeeded(job, history):
        return "its retry had succeeded"
    if reason == "rejected" and is_publish_refused(job, history):
        return "its own publish was refused"
    if job.failed and any(death(run, history) for run in job.runs):
        return "killed in the middle"
    if job.failed and not job.runs:
        return any_death(job, history)
    # If all data are lost, the window begins before all events.
    return next((f"forgotten: {w.what}" for w in history.amnesias if w.meets(job.intended, job.accepted)), None)


def _check_chords(history: History, verdict: Verdict) -> None:
    for callback, parts in list(history.chords.items()):
        jobs = [job for part in parts for job in history.jobs_of_task[part]]
        if not any(job.ended for job in history.jobs_of_task[callback]):
            # On any broker, Celery does not count a chord part whose process dies after its end.
            reason = next((why for job in jobs if (why := disturbed(job, history) or _any_loss(job, history))), None)
            if reason is None:
                verdict.violations.append(f"all parts of a chord ended, but not its callback {callback}")
            else:
                verdict.lost[f"chord: {reason}"] += 1
        del history.chords[callback]


def _any_loss(job: Job, history: History) -> str | None:
    if not job.ended:
        return "a part did not end"
    if any(w.meets(run.end, reported_by(run, history)) for run in job.runs for w in history.results_away):
        return "the results' server was down"
    return "its publish was refused" if is_publish_refused(job, history) else None


def described(job: Job, history: History, remains: Remains) -> str:
    """Describe a job in one line."""
    runs = []
    for run in sorted(job.runs, key=lambda run: run.start):
        runs.append(f"run by {run.pid} of worker {run.worker} {run.start:.2f}..{run.end:.2f} {run.outcome}")
        deaths = {"process": history.deaths.get(run.pid), "worker": history.deaths.get(run.worker)}
        runs += [f"that {who} was killed {at:.2f}" for who, at in deaths.items() if at is not None]
    facts = [f"{job.name} {job.redis_id} task {job.task}", f"intended {job.intended:.2f}, accepted {job.accepted:.2f}"]
    facts += [f"due {job.due:.2f}"] if job.due else []
    facts += [f"failed: {job.failed}"] if job.failed else []
    facts.append(f"state {remains.states.get(job.redis_id)}, result {remains.results.get(job.task)}")
    return "; ".join([*facts, *runs])
