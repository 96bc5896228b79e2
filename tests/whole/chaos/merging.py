"""Checks merging calls: each call has one end, from a run that contains the call, and its follow-up calls ran."""

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

from .facts import Job, MergedCall, Run
from .history import History
from .merged_tasks import EARLY, ON_THE_BROKERS_SERVER, SPLIT
from .reasons import reported_by, troubles_of, why_again
from .remains import Remains

#: States of a pending result.
_OPEN = (None, "PENDING", "STARTED", "RETRY")

Violated = Callable[[str], None]


def check_merging(history: History, remains: Remains, again: Counter[str]) -> tuple[int, int, list[str]]:
    """Return the numbers of merging calls and of their runs, and the violations; count repetitions in *again*."""
    found: list[str] = []
    calls = [history.calls[token] for token in history.touched_calls]
    runs = {run.id: run for call in calls for run in call.runs}
    for run in runs.values():
        found += _mixed(run, history)
    for call in calls:

        def violated(what: str, call: MergedCall = call) -> None:
            found.append(f"{what}: {described(call, remains)}")

        _check_runs(call, history, again, violated)
        if not call.checked:
            _check_end(call, history, remains, violated)
        _check_step(call, history, remains, violated)
        call.checked = True
    for callback, tokens in history.merged_chords.items():
        parts = [history.calls[token] for token in tokens if token in history.calls]
        found += _check_chord(callback, parts, history, remains)
    history.merged_chords.clear()
    history.touched_calls.clear()
    return len(calls), len(runs), found


def as_jobs(history: History) -> list[Job]:
    """Return a job for each merged run since the last check: keys, limits and pauses count claims."""
    jobs = []
    for run in history.merged_runs:
        first = history.calls[run.calls[0]]
        jobs.append(Job(run.id, name=first.name, type=first.type, intended=first.intended, runs=[run]))
    history.merged_runs.clear()
    return jobs


def _mixed(run: Run, history: History) -> list[str]:
    """Return violations unless a run's calls have one task, type and key, and each call is contained once."""
    of = {(history.calls[token].name, history.calls[token].type, history.calls[token].key) for token in run.calls}
    found = [f"a run has calls of several tasks, types or keys, {sorted(of)}: {run.calls}"] if len(of) > 1 else []
    twice = [token for token, times in Counter(run.calls).items() if times > 1]
    if twice and not any(why_again(each, history) for token in twice for each in history.calls[token].runs):
        found.append(f"a run has a call twice, {twice}: {run.calls}")
    name = next(iter(of))[0]
    expected = {"merged_first": run.calls[:1], "merged_last": run.calls[-1:]}.get(name, run.calls)
    if run.given != expected:
        found.append(f"a run of {name} was given {run.given}, of {run.calls}")
    return found


def _check_runs(call: MergedCall, history: History, again: Counter[str], violated: Violated) -> None:
    """Each publish runs once; every further run needs a reason."""
    if call.runs and not call.tries:
        violated("ran, but was never published")
    reasons = [why_again(run, history) for run in call.runs]
    if reasons.count(None) > call.tries:
        violated("ran again without a reason")
    elif len(reasons) > call.tries and not call.checked:
        again.update([why for why in reasons if why][: len(reasons) - call.tries])


def _check_end(call: MergedCall, history: History, remains: Remains, violated: Violated) -> None:
    """A call that was accepted or ran must have one end."""
    if call.refused and not any(w.meets(call.intended, inf) for w in (*history.is_full, *history.troubles)):
        violated("a publish was refused")
    state, value = remains.results.get(call.task), remains.values.get(call.task)
    forgot = [
        *history.amnesias,
        *(history.amnesias if call.name in ON_THE_BROKERS_SERVER else history.results_amnesias),
    ]
    if (call.accepted == inf and not call.runs) or any(w.meets(call.intended, inf) for w in forgot):
        return
    if state in _OPEN:
        if not _is_own_end_lost(call, history) and not _is_reported_late(call, history):
            violated(f"its end was not reported, its state is {state}")
    elif state == "SUCCESS":
        _check_result(call, value, violated)
    elif state != "FAILURE" or _why_failed(call, value, history) is None:
        violated(f"ended in {state}, and nothing explains that")
    window = history.waited.get(call.task)
    if window is not None and state not in _OPEN and not any(run.end > window.until - 1 for run in call.runs):
        troubles = (*history.troubles, *history.results_away, *history.is_full)
        own = any(why_again(run, history) for run in call.runs)
        if not own and not any(each.meets(call.intended, window.until) for each in troubles):
            violated(f"its caller got no result: {window.what}")


def _check_result(call: MergedCall, value: Any, violated: Violated) -> None:
    if not isinstance(value, dict) or call.token not in value["tokens"]:
        violated("it got the result of other calls")
    elif call.runs and value["run"] not in {run.id for run in call.runs}:
        violated(f"its result is of run {value['run']}, which does not contain the call")
    elif call.name in SPLIT and value.get("part") != call.token:
        violated(f"it got the part of {value.get('part')}")


def _why_failed(call: MergedCall, value: Any, history: History) -> str | None:
    """Return the noted fault that explains the failure of a call."""
    error = value.get("exc_type") if isinstance(value, dict) else ""
    disturbed = next((why for run in call.runs if (why := why_again(run, history))), None)
    if error == "WorkerLostError":
        at = min((run.start for run in call.runs), default=call.intended)
        died = any(death >= at for death in history.deaths.values()) and (call.name in EARLY or disturbed)
        return disturbed or ("killed before its first line" if died and not call.runs else None)
    if error == "ResultLostError":
        away = _is_lost_to_dispatcher(call, history)
        return disturbed or ("its result is not known" if away else None)
    # Celery rejects a run whose retry could not be published.
    if error in ("Reject", "OperationalError", "ConnectionError", "TimeoutError", "ResponseError", "OutOfMemoryError"):
        windows = (*history.is_full, *history.troubles, *history.results_away)
        return "a server was down" if any(w.meets(call.intended, inf) for w in windows) else None
    return None


def _is_lost_to_dispatcher(call: MergedCall, history: History) -> bool:
    """Return True if the result of a run of *call* was not stored, or its process could not report to *call*."""
    windows = [*history.is_full, *history.results_away, *history.results_amnesias]
    return any(
        window.meets(run.start, reported_by(run, history))
        for run in call.runs
        for window in (*windows, *troubles_of(run, history))
    )


def _is_own_end_lost(call: MergedCall, history: History) -> bool:
    """Return True if the run had the message of *call*, and Celery's tracer could not store the result."""
    return any(
        run.task == call.task and window.meets(run.start, reported_by(run, history))
        for run in call.runs
        for window in (*history.results_away, *history.is_full, *troubles_of(run, history))
    )


def _is_reported_late(call: MergedCall, history: History) -> bool:
    """Return True if RETRY was stored after the end of the next attempt: see `checker`."""
    done = min((run.end for run in call.runs if run.outcome == "done"), default=inf)
    return done < inf and any(run.outcome == "retried" and reported_by(run, history) >= done for run in call.runs)


def _check_step(call: MergedCall, history: History, remains: Remains, violated: Violated) -> None:
    """The follow-up of a successful call must be published, once unless a process died, with the result of the call."""
    if not all(call.has_own):
        violated("its follow-up got the result of other calls")
    if call.follows not in ("link", "chain") or any(w.meets(call.intended, inf) for w in history.amnesias):
        return
    if not call.steps and remains.results.get(call.task) == "SUCCESS":
        violated("its follow-up was not published")
    accepted = {step for step in call.steps if history.jobs[step].accepted < inf or history.jobs[step].runs}
    runs = max(1, sum(run.outcome == "done" for run in call.runs))
    has_died = any(at >= min(run.start for run in call.runs) for run in call.runs for at in history.deaths.values())
    if len(accepted) > runs and not has_died and not any(why_again(run, history) for run in call.runs):
        violated(f"its follow-up was published {len(accepted)} times")


def _is_cut_off(callback: str, history: History) -> bool:
    """Return True if a process died while publishing the body of a chord.

    In Celery, on any broker, no other process may publish the body before the dead process's claim has expired.
    """
    jobs = history.jobs_of_task[callback]
    return any(job.accepted == inf and any(at >= job.intended for at in history.deaths.values()) for job in jobs)


def _check_chord(callback: str, calls: list[MergedCall], history: History, remains: Remains) -> list[str]:
    """Return a violation if all calls of a chord succeeded, and its body did not run."""
    if any(job.ended for job in history.jobs_of_task[callback]) or _is_cut_off(callback, history):
        return []
    if not calls or any(remains.results.get(call.task) != "SUCCESS" for call in calls):
        return []
    windows = [*history.amnesias, *history.results_amnesias]
    since = min(call.intended for call in calls)
    if any(window.meets(since, inf) for window in windows) or any(_may_miss_its_part(call, history) for call in calls):
        return []
    states = "; ".join(described(call, remains) for call in calls)
    return [f"all parts of a chord ended, but not its callback {callback}: {states}"]


def _may_miss_its_part(call: MergedCall, history: History) -> bool:
    """Return True if a run had the message of *call*, and a fault hit it after its end: Celery then loses the part."""
    return _is_own_end_lost(call, history) or any(
        run.task == call.task and why_again(run, history) for run in call.runs
    )


def described(call: MergedCall, remains: Remains) -> str:
    """Describe a call in one line."""
    facts = [f"{call.name} {call.token} task {call.task}, {call.follows or 'alone'}, {call.tries} tries"]
    facts.append(f"intended {call.intended:.2f}, accepted {call.accepted:.2f} {call.refused}")
    for run in sorted(call.runs, key=lambda run: run.start):
        facts.append(f"run {run.id} of worker {run.worker} {run.start:.2f}..{run.end:.2f} {run.outcome}")
        facts.append(f"number {run.calls.index(call.token)} of {len(run.calls)} calls")
    facts.append(f"steps {len(call.steps)}, result {remains.results.get(call.task)}")
    return "; ".join([*facts, f"{remains.values.get(call.task)!s:.150}"])
