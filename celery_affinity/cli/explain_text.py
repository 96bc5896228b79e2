"""Text output of ``celery affinity explain``."""

import json

from ..admin.job_values import JobValues
from ..reports import sentences
from ..reports.blockers import PreemptedJob, StopOrder
from ..reports.explain import Explanation, SlotsOfTypes, Waiting
from ..reports.jobs import LocalWorkers
from ..reports.keys import KeyName
from ..reports.queue_order import ClaimGroup
from ..reports.render import (
    Row,
    approximate_text,
    duration_text,
    mode_text,
    pluralize,
    printable_cell,
    time_text,
    wrap_paragraph,
)
from ..reports.requeues import requeue_sentence
from ..reports.tenants import ShareTurn

#: Rules that suspend the overtaking bound -> text.
_RULES = {
    "pause": "a pause",
    "type limit": "the limit of its type",
    "key": "a key",
    "tenant": "the maximum of its tenant",
    "reserve": "a reserve",
}


def explanation_text(job: Explanation) -> str:
    """Return an explanation as a few lines."""
    if job.in_list is not None:
        return wrap_paragraph(
            [
                ("task", f"{job.id}  {job.task or ''}"),
                ("state", f"no job: in stock Celery's list {job.in_list.list!r}"),
                ("why", job.note or ""),
            ]
        )
    came_back: Row = ("came back", [*map(requeue_sentence, job.left_workers)])
    if job.state == "unknown":
        unknown = f"task {printable_cell(job.id)} is unknown: {job.note}"
        return "\n".join([unknown, *([wrap_paragraph([came_back])] if job.left_workers else [])])
    since_s, now_s = job.since_s or 0, job.now_s or 0
    rows: list[Row] = [
        ("task", f"{job.id}  {job.task}"),
        ("state", f"{job.state} since {time_text(since_s)} ({duration_text(max(0, now_s - since_s))})"),
        ("cohort", job.cohort),
        ("needs", f"type {job.type}, priority {job.priority}, {mode_text(job.mode == 'on_demand')}"),
        ("waits for", _waits_for(job) if job.state == "scheduled" else None),
        ("due", _due(job)),
        ("late", job.why_late),
        ("origin", f"recurring call {job.recurring!r}" if job.recurring else None),
        ("worker", job.worker or None),
        *_wait_and_run(job),
        ("reason", job.reason or None),
        ("why", job.why or None),
        ("note", job.note or None),
        came_back if job.left_workers else ("came back", _deliveries(job)),
        ("requeued", f"{pluralize(job.requeues, 'time')}, by its task" if job.requeues else None),
        ("stopped", _stopped(job.stopped) if job.stopped else None),
        *[("preempting" if job.waiting else "stops", _stop(order, job)) for order in job.stops],
        ("preempting", job.why_no_stop),
        ("other jobs", f"{len(job.other_jobs)} with this task id have not ended" if job.other_jobs else None),
        *(_waiting_rows(job.waiting, now_s) if job.waiting else ()),
        ("near", _near(job.hint or "", job.near) if job.near else None),
    ]
    return wrap_paragraph(rows)


def _due(job: Explanation) -> str | None:
    """Return the due time and the deadline that the call set, the head start, and the expected start."""
    texts = [] if job.start_by_s is None else [f"to start by {time_text(job.start_by_s)}"]
    texts += [] if job.deadline_s is None else [f"to end by {time_text(job.deadline_s)}"]
    texts += [f"head start {duration_text(job.head_start_s)}"] if job.head_start_s else []
    texts += [] if job.expected_start_s is None else [f"expected at {time_text(job.expected_start_s)}"]
    return ", ".join(texts) or None


def _deliveries(job: Explanation) -> str | None:
    """Return the number of deliveries of a job that came back more than a day ago."""
    times = pluralize(job.deliveries, "time")
    return f"{times}: its worker died, or requeued the job" if job.deliveries else None


def _wait_and_run(job: Explanation) -> list[Row]:
    """Return the wait and the run time of a job that is no longer waiting."""
    if job.state in ("scheduled", "pending"):
        return []
    ran = "" if job.started_s else " since its claim (the start time is unknown)"
    return [
        ("waited", None if job.waited_s is None else duration_text(job.waited_s)),
        ("ran", None if job.ran_s is None else f"{duration_text(job.ran_s)}{ran}"),
    ]


def values_text(values: JobValues) -> str:
    """Return arguments and result as a few lines, and a traceback after them."""
    result = json.dumps(values.result, ensure_ascii=False) if values.status == "SUCCESS" else None
    rows: list[Row] = [
        ("arguments", values.args),
        ("keywords", values.kwargs),
        ("status", values.status),
        ("result", result),
        ("error", values.error),
        ("note", values.note),
    ]
    if all(text is None for _, text in rows):
        return "neither the broker nor the result backend has arguments or a result of this task"
    return "\n".join([wrap_paragraph(rows), *map(printable_cell, (values.traceback or "").splitlines())])


def _stopped(stopped: PreemptedJob) -> str:
    ran = approximate_text(stopped.ran_s)
    for_whom = sentences.for_tenant_clause(stopped.tenant, stopped.minimum)
    return f"on {stopped.worker} at {time_text(stopped.at_s)} (ran {ran}) {for_whom}; {stopped.times} of {stopped.most}"


def _stop(stop: StopOrder, job: Explanation) -> str:
    remaining = f"{stop.left_s:.0f} s of {stop.grace_s:.0f} s grace left"
    if job.waiting:
        return f"{stop.task} on {stop.worker}, {remaining}"
    return f"{sentences.for_tenant_clause(stop.tenant, stop.minimum)}: {remaining}"


def _waits_for(job: Explanation) -> str:
    if job.paused_until_s is not None:
        return f"the end of its pause at {time_text(job.paused_until_s)}"
    if job.patient_until_s is None:
        return "the next tick of a dispatcher" if job.due_s is None else time_text(job.due_s)
    return f"more calls until {time_text(job.patient_until_s)}"


def _waiting_rows(waiting: Waiting, now_s: float) -> list[Row]:
    score = waiting.score
    terms = f"{score.priority:,.1f} priority + {score.age:,.1f} age + {score.rarity:,.1f} rarity"
    fit = pluralize(score.slots_that_fit, "slot that fits", "slots that fit")
    on_demand = f" + {score.on_demand:,.1f} on demand" if score.on_demand else ""
    blockers = [blocker.why for blocker in waiting.blocked_by]
    return [
        ("score", f"{score.total:,.1f} = {terms} ({fit}){on_demand}"),
        ("rank", f"{waiting.rank_in_type} of its type, {waiting.rank} of all jobs that its slots could take"),
        ("ahead", ", ".join(map(_group, waiting.ahead)) or "none"),
        ("slots", [*map(_slots, waiting.slots)]),
        ("tenant", _tenant(waiting.key.key) if waiting.key and waiting.key.key.tenant is not None else None),
        ("turn", _turn(waiting.turn) if waiting.turn else None),
        ("blocked by", blockers or "nothing: a slot has just become free"),
        ("overtaken", _overtaken(waiting)),
        ("wait", _wait(waiting, now_s)),
    ]


def _near(hint: str, near: LocalWorkers) -> str:
    if not near.workers:
        return f"no worker holds the hint {printable_cell(hint)!r}"
    workers = (
        f"{worker.name} ({duration_text(worker.used_s)} ago), "
        f"{pluralize(worker.free, 'free slot') if worker.free else 'busy'}"
        for worker in near.workers
    )
    bonus = f"bonus {near.bonus:,.1f} there" if near.bonus else "no bonus there (affinity_locality_bonus)"
    return f"{'; '.join(workers)}; {bonus}"


def _tenant(key: KeyName) -> str:
    quota = "no maximum" if key.limit is None else f"at most {key.limit}"
    quota = f"at least {key.minimum}, {quota}" if key.minimum else quota
    return f"{key.tenant}: {pluralize(key.held, 'slot')}, {quota}; waiting: {pluralize(key.waiting, 'job')}"


def _turn(turn: ShareTurn) -> str:
    if turn.used_s is not None:
        used = f"{turn.used_s:,.1f} s of slot time divided by its weight, older use counting less"
    else:
        used = f"{turn.ahead_s:,.1f} s of slot time divided by its weight more than the tenant that ran last"
    turns = pluralize(turn.turns, "turn")
    return f"{turn.before} of {turns} for its slots come before it: its tenant has used {used}"


def _overtaken(waiting: Waiting) -> str:
    if waiting.turn and not waiting.kept_back:
        return "no time limit: tenants take turns (fair share) among the jobs of its mode and priority"
    if waiting.goes_first and not waiting.kept_back:
        return "not by jobs of tenants that have their minimum, because its own tenant is below its minimum"
    if waiting.passing and not waiting.kept_back:
        passing = pluralize(waiting.passing, "job")
        return f"no time limit while other tenants are below their minimum: {passing} of theirs run first"
    if waiting.bound_s is None or waiting.passed_until_s is None:
        rule = next((_RULES[blocker.rule] for blocker in waiting.blocked_by if blocker.rule in _RULES), "a rule")
        return f"no time limit while {rule} blocks it"
    condition = "its key has capacity and no other rule" if waiting.key else "no rule"
    from_then = f"from {time_text(waiting.passed_until_s)} on, newly published jobs can no longer take a slot"
    return f"{from_then} that this job could use (while {condition} blocks it)"


def _wait(waiting: Waiting, now_s: float) -> str:
    if waiting.not_before is not None:
        at_s = waiting.not_before.at_s
        left, why = duration_text(max(0.0, at_s - now_s)), waiting.not_before.why
        in_all = "" if waiting.estimate_s is None else f"; ~{approximate_text(waiting.estimate_s)} in all, an estimate"
        return f"until {time_text(at_s)} at least ({left}): {why}{in_all}"
    if waiting.overdue_since_s is not None and waiting.key and waiting.key.run_s is not None and not waiting.is_paused:
        late = duration_text(max(0.0, now_s - waiting.overdue_since_s))
        usual = duration_text(waiting.key.run_s)
        return f"overdue since {time_text(waiting.overdue_since_s)} ({late}): jobs of its type usually run for {usual}"
    if waiting.estimate_s is None:
        return f"unknown: {_why_unknown(waiting)}"
    if waiting.kept_back and waiting.key and waiting.key.key.starts:
        return f"~{approximate_text(waiting.estimate_s)} until its key lets it start, an estimate"
    if waiting.kept_back and waiting.key and waiting.key.run_s is not None:
        run = duration_text(waiting.key.run_s)
        return f"~{approximate_text(waiting.estimate_s)}, estimated from recent runs of this key: {run} each"
    return f"{duration_text(waiting.estimate_s)} more, estimated from recent run times"


def _why_unknown(waiting: Waiting) -> str:
    """Return the reason why there is no estimate. Only a few of the short jobs are timed."""
    if waiting.is_paused:
        return "it is paused"
    if waiting.kept_back and waiting.key and waiting.key.key.limit == 0:
        return "its key is closed"
    if any(blocker.is_closed for blocker in waiting.blocked_by):
        return "its type is closed"
    if waiting.overdue:
        return "each slot that fits has a job that takes far longer than usual"
    if not waiting.score.slots_that_fit:
        return "no live worker serves the type"
    if not sum(group.slots for group in waiting.slots):
        return "the workers that serve the type refuse it for the moment"
    return "no run time of such jobs is known yet"


def _group(group: ClaimGroup) -> str:
    demand = " on demand" if group.on_demand else ""
    kept_back = " blocked by a key or a quota" if group.kept_back else ""
    return f"{group.jobs} of {group.type} priority {group.priority}{demand}{kept_back}"


def _slots(group: SlotsOfTypes) -> str:
    on_workers = f"{pluralize(group.slots, 'slot')} on {pluralize(group.workers, 'worker')}"
    return f"[{' '.join(group.types)}]: {on_workers}, {group.free} free"
