"""The output of ``celery affinity explain`` for people."""

import json

from ..admin.job_values import JobValues
from ..reports import sentences
from ..reports.blockers import PreemptedJob, StopOrder
from ..reports.explain import Explanation, SlotsOfTypes, Waiting
from ..reports.jobs import LocalWorkers
from ..reports.keys import KeyName
from ..reports.queue_order import ClaimGroup
from ..reports.tenants import ShareTurn
from .render import approximate_text, duration_text, mode_text, pluralize, printable_cell, time_text, wrap_paragraph

#: Rules that suspend the bound on overtaking, in words.
_RULES = {
    "pause": "a pause",
    "type limit": "the limit of its type",
    "key": "a key",
    "tenant": "the maximum of its tenant",
    "reserve": "a reserve",
}


def explanation_text(found: Explanation) -> str:
    """Return an explanation as a few lines."""
    if found.in_list is not None:
        return wrap_paragraph(
            [
                ("task", f"{found.id}  {found.task or ''}"),
                ("state", f"no job: in stock Celery's list {found.in_list.list!r}"),
                ("why", found.note or ""),
            ]
        )
    if found.state == "unknown":
        return f"task {printable_cell(found.id)} is unknown: {found.note}"
    rows = [
        ("task", f"{found.id}  {found.task}"),
        ("state", _state(found)),
        *([("cohort", found.cohort)] if found.cohort else []),
        ("needs", f"type {found.type}, priority {found.priority}, {mode_text(found.mode == 'on_demand')}"),
        *([("waits for", _waits_for(found))] if found.state == "scheduled" else []),
        *([("origin", f"recurring call {found.recurring!r}")] if found.recurring else []),
        *([("worker", found.worker)] if found.worker else []),
        *_took(found),
        *([("reason", found.reason)] if found.reason else []),
        *([("why", found.why)] if found.why else []),
        *([("note", found.note)] if found.note else []),
        *(
            [("came back", f"{pluralize(found.deliveries, 'time')}: its worker died, or gave it back unfinished")]
            if found.deliveries
            else []
        ),
        *([("requeued", f"{pluralize(found.requeues, 'time')}, as its task asked")] if found.requeues else []),
        *([("stopped", _stopped(found.stopped))] if found.stopped else []),
        *[("preempting" if found.waiting else "stops", _stop(each, found)) for each in found.stops],
        *([("preempting", found.why_no_stop)] if found.why_no_stop else []),
        *([("other jobs", f"{len(found.other_jobs)} with this task id have not ended")] if found.other_jobs else []),
        *(_waiting_rows(found.waiting, found.now_s or 0) if found.waiting else []),
        *([("near", _near(found.hint or "", found.near))] if found.near else []),
    ]
    return wrap_paragraph(rows)


def _state(found: Explanation) -> str:
    since_s, now_s = found.since_s or 0, found.now_s or 0
    return f"{found.state} since {time_text(since_s)} ({duration_text(max(0, now_s - since_s))})"


def _took(found: Explanation) -> list[tuple[str, str]]:
    """Return how long a job waited, and ran, that waits no longer."""
    if found.state in ("scheduled", "pending"):
        return []
    ran = "" if found.started_s else ", from its claim: its start is not known"
    return [
        *([("waited", duration_text(found.waited_s))] if found.waited_s is not None else []),
        *([("ran", f"{duration_text(found.ran_s)}{ran}")] if found.ran_s is not None else []),
    ]


def values_text(found: JobValues) -> str:
    """Return arguments and result as a few lines, and a traceback after them."""
    result = json.dumps(found.result, ensure_ascii=False) if found.status == "SUCCESS" else None
    rows = [
        ("arguments", found.args),
        ("keywords", found.kwargs),
        ("status", found.status),
        ("result", result),
        ("error", found.error),
        ("note", found.note),
    ]
    known = [(name, text) for name, text in rows if text is not None]
    if not known:
        return "neither the broker nor the result backend knows arguments or result"
    return "\n".join([wrap_paragraph(known), *map(printable_cell, (found.traceback or "").splitlines())])


def _stopped(stopped: PreemptedJob) -> str:
    ran = approximate_text(stopped.ran_s)
    for_whom = sentences.for_tenant_clause(stopped.tenant, stopped.minimum)
    return f"on {stopped.worker} at {time_text(stopped.at_s)} (ran {ran}) {for_whom}; {stopped.times} of {stopped.most}"


def _stop(stop: StopOrder, found: Explanation) -> str:
    left = f"{stop.left_s:.0f} s of {stop.grace_s:.0f} s grace left"
    if found.waiting:
        return f"{stop.task} on {stop.worker}, {left}"
    return f"{sentences.for_tenant_clause(stop.tenant, stop.minimum)}: {left}"


def _waits_for(found: Explanation) -> str:
    if found.paused_until_s is not None:
        return f"the end of its pause at {time_text(found.paused_until_s)}"
    if found.patient_until_s is None:
        return "the next tick of a dispatcher" if found.due_s is None else time_text(found.due_s)
    return f"more calls until {time_text(found.patient_until_s)}"


def _waiting_rows(waiting: Waiting, now_s: float) -> list[tuple[str, str]]:
    score = waiting.score
    terms = f"{score.priority:,.1f} priority + {score.age:,.1f} age + {score.rarity:,.1f} rarity"
    fit = pluralize(score.slots_that_fit, "slot that fits", "slots that fit")
    on_demand = f" + {score.on_demand:,.1f} on demand" if score.on_demand else ""
    return [
        ("score", f"{score.total:,.1f} = {terms} ({fit}){on_demand}"),
        ("rank", f"{waiting.rank_in_type} of its type, {waiting.rank} of all jobs that its slots could take"),
        ("ahead", ", ".join(_group(group) for group in waiting.ahead) or "none"),
        *[("slots" if number == 0 else "", _slots(each)) for number, each in enumerate(waiting.slots)],
        *([("tenant", _tenant(waiting.key.key))] if waiting.key and waiting.key.key.tenant is not None else []),
        *([("turn", _turn(waiting.turn))] if waiting.turn else []),
        *[("blocked by" if number == 0 else "", each) for number, each in enumerate(_blocked_by(waiting))],
        ("overtaken", _overtaken(waiting)),
        ("wait", _wait(waiting, now_s)),
    ]


def _near(hint: str, near: LocalWorkers) -> str:
    if not near.workers:
        return f"no worker holds the hint {printable_cell(hint)!r}"
    some = (
        f"{each.name} ({duration_text(each.used_s)} ago), {pluralize(each.free, 'free slot') if each.free else 'busy'}"
        for each in near.workers
    )
    bonus = f"bonus {near.bonus:,.1f} there" if near.bonus else "no bonus there (affinity_locality_bonus)"
    return f"{'; '.join(some)}; {bonus}"


def _tenant(key: KeyName) -> str:
    most = "no maximum" if key.limit is None else f"at most {key.limit}"
    most = f"at least {key.minimum}, {most}" if key.minimum else most
    return f"{key.tenant}: {pluralize(key.held, 'slot')}, {most}; waiting: {pluralize(key.waiting, 'job')}"


def _turn(turn: ShareTurn) -> str:
    if turn.used_s is not None:
        used = f"{turn.used_s:,.1f} s of slots by weight, what is long ago counting less"
    else:
        used = f"{turn.ahead_s:,.1f} s of slots by weight beyond the tenant that went last"
    return f"{turn.before} of {pluralize(turn.tenants, 'tenant')} in its lane go before it: it has used {used}"


def _blocked_by(waiting: Waiting) -> list[str]:
    return [each.why for each in waiting.blocked_by] or ["nothing: a slot has just become free"]


def _overtaken(waiting: Waiting) -> str:
    if waiting.turn and not waiting.kept_back:
        return "no bound of its own: the tenants of its lane go by turns, and the lane by its oldest job"
    if waiting.goes_first and not waiting.kept_back:
        return "by no job of another tenant that has its minimum: its own has less"
    if waiting.passing and not waiting.kept_back:
        passing = pluralize(waiting.passing, "job")
        return f"no bound while tenants have less than their minimum: {passing} of theirs go first"
    if waiting.bound_s is None or waiting.passed_until_s is None:
        rule = next((_RULES[each.rule] for each in waiting.blocked_by if each.rule in _RULES), "a rule")
        return f"no bound while {rule} keeps it back"
    bound = (
        f"only by jobs published less than {waiting.bound_s:,.2f} s after it: until {time_text(waiting.passed_until_s)}"
    )
    return f"{bound}, while its key has room" if waiting.key else bound


def _wait(waiting: Waiting, now_s: float) -> str:
    if waiting.not_before is not None:
        at_s = waiting.not_before.at_s
        known = f"until {time_text(at_s)} at least ({duration_text(max(0.0, at_s - now_s))}): {waiting.not_before.why}"
        return (
            known
            if waiting.estimate_s is None
            else f"{known}; ~{approximate_text(waiting.estimate_s)} in all, an estimate"
        )
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
    """Return the reason why there is no estimate. Jobs may have ended untimed: of short ones only a few are timed."""
    if waiting.is_paused:
        return "it is paused"
    if waiting.kept_back and waiting.key and waiting.key.key.limit == 0:
        return "its key is closed"
    if any(each.is_closed for each in waiting.blocked_by):
        return "its type is closed"
    if waiting.overdue:
        return "each slot that fits has a job that takes far longer than usual"
    if not waiting.score.slots_that_fit:
        return "no live worker serves the type"
    if not sum(each.slots for each in waiting.slots):
        return "the workers that serve the type refuse it for the moment"
    return "no run time of such jobs is known yet"


def _group(group: ClaimGroup) -> str:
    demand = " on demand" if group.on_demand else ""
    kept_back = " that wait for a key" if group.kept_back else ""
    return f"{group.jobs} of {group.type} priority {group.priority}{demand}{kept_back}"


def _slots(each: SlotsOfTypes) -> str:
    return f"[{' '.join(each.types)}]: {pluralize(each.slots, 'slot')} on {pluralize(each.workers, 'worker')}, {each.free} free"
