"""The output of the commands for people: tables and paragraphs, one function for each report."""

import textwrap
from collections.abc import Collection, Sequence

import click

from ..check import Facts, Finding, Level
from ..observe.claim_order import Group, Next
from ..observe.dead_letters import DeadLetter, Shown
from ..observe.explain import Explanation
from ..observe.jobs import Job
from ..observe.status import Status, TypeStatus, WorkerStatus
from ..observe.trend import Trend
from ..observe.waiting import Slots, Waiting
from ..rules.bounds import DROP_NEWEST, DROP_OLDEST, REFUSE, Bound
from ..rules.settings import PREFIX, Settings, Value
from ..rules.shared_settings import NAME_IN_REDIS, from_redis, shared
from ..rules.type_name import did_you_mean
from ..server.runtime_settings import RuntimeSetting
from .pauses import sentence
from .words import about, duration, many, mode, moment, paragraph, printable, table

_SLOTS = ("free slots", "busy slots")


def status(found: Status) -> str:
    """Return types, workers and counts as text."""
    is_any_merged = any(each.further_calls for each in found.types)
    types = table(
        ("type", "pending", *(["calls"] if is_any_merged else []), "on demand", "oldest wait", *_SLOTS, ""),
        [_type_row(each, is_any_merged) for each in found.types],
        red=[each.unserved for each in found.types],
    )
    workers = table(
        ("worker", "types", "slots", "free", "last beat", ""), [_worker_row(each) for each in found.workers]
    )
    paused = "".join(f"\n{sentence(each)}" for each in found.pauses)
    return f"{types}\n\n{workers}\n\nscheduled for later: {found.scheduled}   dead letters: {found.dead}{paused}"


def _type_row(each: TypeStatus, has_calls: bool) -> tuple[str, ...]:
    wait = "-" if each.oldest_wait_s is None else duration(each.oldest_wait_s)
    notes = ["paused"] if each.paused else []
    notes += [f"{many(each.kept_back, 'waits', 'wait')} for a key"] if each.kept_back else []
    notes += (
        [f"{many(each.kept_back_by_reserves, 'waits', 'wait')} because of a reserve"]
        if each.kept_back_by_reserves
        else []
    )
    notes += [f"kept free: {kept.kept} for {kept.for_whom}" for kept in each.reserves]
    notes += [_fill(each.pending, each.bound)] if each.bound else []
    notes += [_trend(each.trend)] if each.trend and (each.trend.grows or each.trend.shrinks) else []
    notes += ["no live worker serves it"] if each.unserved else []
    note = "; ".join(notes)
    waiting = [each.pending, each.calls] if has_calls else [each.pending]
    return each.type, *map(str, [*waiting, each.on_demand]), wait, str(each.free), str(each.busy), note


def _trend(each: Trend) -> str:
    by = abs(each.now - each.before)
    how = f"{'grows' if each.grows else 'shrinks'} by {by:,} in {duration(each.seconds)}"
    return f"{how}: {each.published:,} published, {each.ended:,} ended"


#: What happens to calls of a type whose bound is reached.
_BEYOND = {
    REFUSE: "further calls are refused",
    DROP_OLDEST: "then the oldest job is dropped",
    DROP_NEWEST: "further calls are dropped",
}


def _fill(pending: int, bound: Bound) -> str:
    full = _BEYOND[bound.full]
    return f"{pending * 100 // bound.most} % full: {bound.most:,} may wait, {full}"


def _worker_row(each: WorkerStatus) -> tuple[str, ...]:
    notes = ["draining"] if each.draining else ["takes no jobs"] if not each.types else []
    notes += ["its event loop stands still"] if each.stalled else []
    notes += [f"slow: its jobs take {each.pace:.1f} times as long as average"] if each.pace and each.is_slow else []
    notes += [f"rate limit: takes no {', '.join(each.withdrawn)} jobs for the moment"] if each.withdrawn else []
    note = "; ".join(notes)
    beat = f"{duration(each.last_beat_s)} ago"
    return each.name, ",".join(each.types), str(each.slots), str(each.free), beat, note


#: Largest number of characters of an error in a table.
_WHY_IN_A_ROW = 80

_COLOURS = {Level.ERROR: "red", Level.WARNING: "yellow", Level.NOTE: "cyan"}


def running(jobs: Sequence[Job], now_s: float) -> str:
    """Return the jobs that workers hold as a table, those that began first at the top."""
    if not jobs:
        return "no worker holds a job"
    ordered = sorted(jobs, key=lambda each: each.started_s or each.claimed_s or now_s)
    return table(("worker", "for", "type", "task", "task id", ""), [_running_row(each, now_s) for each in ordered])


def _running_row(each: Job, now_s: float) -> tuple[str, ...]:
    since_s = each.started_s or each.claimed_s or now_s
    note = "" if each.state == "running" else "claimed"
    return each.worker or "", duration(max(0.0, now_s - since_s)), each.type or "", each.task or "", each.id, note


def findings(facts: Facts, found: Sequence[Finding]) -> str:
    """Return a check as text: the app, server and workers that were asked, the findings, and their number by level."""
    blocks = [_looked_at(facts), *(_finding(each) for each in found), _counts(found)]
    return "\n\n".join(blocks)


def _looked_at(facts: Facts) -> str:
    server, fleet = facts.server, facts.fleet
    parts = [f"app {facts.app.name}", f"broker {facts.app.broker}"]
    if server is not None and server.refused is None:
        parts.append(f"{server.kind} {'.'.join(map(str, server.version))}")
    if fleet is not None:
        answered = many(len(fleet.answers), "worker")
        parts.append(f"{len(fleet.members)} alive, {answered} answered")
    else:
        parts.append("workers not checked")
    return printable(", ".join(parts))


def _finding(each: Finding) -> str:
    head = click.style(f"{each.level.upper():8}{each.id}", fg=_COLOURS[each.level], bold=True)
    lines = [*_wrapped(each.what, ""), *_wrapped(each.todo, "-> ")]
    return "\n".join([head, *lines])


def _wrapped(text: str, mark: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        width=100,
        initial_indent=" " * 8 + mark,
        subsequent_indent=" " * (8 + len(mark)),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _counts(found: Sequence[Finding]) -> str:
    if not found:
        return "no findings"
    return ", ".join(many(sum(each.level is level for each in found), level) for level in Level)


def letters(found: Sequence[DeadLetter]) -> str:
    """Return dead letters as a table."""
    is_any_merged = any(each.calls > 1 for each in found)
    return table(
        ("ended", "reason", *(["calls"] if is_any_merged else []), "type", "task", "task id", "why"),
        [_letter_row(letter, is_any_merged) for letter in found],
    )


def _letter_row(letter: DeadLetter, has_calls: bool) -> tuple[str, ...]:
    why = letter.why or ""
    if len(why) > _WHY_IN_A_ROW:
        why = f"{why[:_WHY_IN_A_ROW]}..."
    calls = [str(letter.calls)] if has_calls else []
    return moment(letter.ended_s), letter.reason, *calls, letter.type, letter.task, letter.task_id, why


def letter(shown: Shown) -> str:
    """Return a dead letter as a few lines."""
    found = shown.letter
    message = (
        f"{shown.message_bytes:,} bytes" if found.replayable else "gone: it had been acked, so it cannot be replayed"
    )
    rows = [
        ("task", f"{found.task_id}  {found.task}"),
        ("job", found.job_id),
        ("type", found.type),
        ("reason", f"{found.reason} at {moment(found.ended_s)}{_came_back(found.deliveries)}"),
        *([("why", found.why)] if found.why else []),
        *([("calls", f"{found.calls}, which shared the run; of the oldest:")] if found.calls > 1 else []),
        ("published", moment(shown.enqueued_s)),
        ("message", message),
        *((name, str(value)) for name, value in shown.headers.items()),
    ]
    return paragraph(rows)


def _came_back(deliveries: int) -> str:
    return f", after it came back {many(deliveries, 'time')}" if deliveries else ""


def upcoming(found: Sequence[Next]) -> str:
    """Return pending jobs as a table, the next one first."""
    return table(
        ("", "type", "priority", "mode", "score", "waited", "task", "task id", ""),
        [_next_row(number, each) for number, each in enumerate(found, 1)],
        red=[not each.served for each in found],
    )


def nothing_pending(types: Sequence[str], served: Collection[str]) -> str:
    """Return the text for an empty table, for each of *types* or for all. *served*: types with live workers."""
    if not types:
        return "nothing is pending"
    return "\n".join(f"nothing is pending of type {type_!r}{_unless_served(type_, served)}" for type_ in types)


def _unless_served(type_: str, served: Collection[str]) -> str:
    return "" if type_ in served else f", which no live worker serves{did_you_mean(type_, served)}"


def _next_row(number: int, each: Next) -> tuple[str, ...]:
    note = "no live worker serves it" if not each.served else "waits for its key" if each.kept_back else ""
    score = f"{each.score:,.1f}" if each.served else "-"
    how, wait = mode(each.on_demand), duration(each.waited_s)
    return str(number), each.type, str(each.priority), how, score, wait, each.task, each.task_id, note


def settings(found: Sequence[RuntimeSetting]) -> str:
    """Return settings as a table; the last column says why a value differs from this app's app.conf."""
    return table(
        ("setting", "in force", "app.conf", "default", ""),
        [
            (PREFIX + each.name, str(each.value), str(each.own), str(_default(each.name)), _setting_note(each))
            for each in found
        ],
        red=[each.disputed for each in found],
    )


def _default(name: str) -> Value:
    return from_redis(name, shared(Settings())[NAME_IN_REDIS[name]])


def _setting_note(each: RuntimeSetting) -> str:
    notes = []
    if each.changed_at_run_time:
        notes.append(f"changed at run time; a reset restores {each.conf}")
    if each.disputed:
        notes.append(f"the app.conf of the workers that joined last has {each.conf}")
    return "; ".join(notes)


# -- explain


def explanation(found: Explanation) -> str:
    """Return an explanation as a few lines."""
    if found.state == "unknown":
        return f"task {printable(found.task_id)} is unknown: {found.note}"
    rows = [
        ("task", f"{found.task_id}  {found.task}"),
        ("state", _state(found)),
        ("needs", f"type {found.type}, priority {found.priority}, {mode(found.on_demand)}"),
        *([("waits for", _waits_for(found))] if found.state == "scheduled" else []),
        *([("origin", f"recurring call {found.recurring!r}")] if found.recurring else []),
        *([("worker", found.worker)] if found.worker else []),
        *([("reason", found.reason)] if found.reason else []),
        *([("why", found.why)] if found.why else []),
        *([("note", found.note)] if found.note else []),
        *([("came back", f"{many(found.deliveries, 'time')} from a worker that died")] if found.deliveries else []),
        *([("other jobs", f"{len(found.other_jobs)} with this task id have not ended")] if found.other_jobs else []),
        *(_waiting_rows(found.waiting) if found.waiting else []),
    ]
    return paragraph(rows)


def _state(found: Explanation) -> str:
    since_s, now_s = found.since_s or 0, found.now_s or 0
    return f"{found.state} since {moment(since_s)} ({duration(max(0, now_s - since_s))})"


def _waits_for(found: Explanation) -> str:
    if found.patient_until_s is None:
        return "the next tick of a dispatcher" if found.due_s is None else moment(found.due_s)
    return f"more calls until {moment(found.patient_until_s)}"


def _waiting_rows(waiting: Waiting) -> list[tuple[str, str]]:
    score = waiting.score
    terms = f"{score.priority:,.1f} priority + {score.age:,.1f} age + {score.rarity:,.1f} rarity"
    fit = many(score.slots_that_fit, "slot that fits", "slots that fit")
    on_demand = f" + {score.on_demand:,.1f} on demand" if score.on_demand else ""
    return [
        ("score", f"{score.total:,.1f} = {terms} ({fit}){on_demand}"),
        ("rank", f"{waiting.rank_in_type} of its type, {waiting.rank} of all jobs that its slots could take"),
        ("ahead", ", ".join(_group(group) for group in waiting.ahead) or "none"),
        *[("slots" if number == 0 else "", _slots(each)) for number, each in enumerate(waiting.slots)],
        *[("blocked by" if number == 0 else "", each) for number, each in enumerate(_blocked_by(waiting))],
        ("overtaken", _overtaken(waiting)),
        ("wait", _wait(waiting)),
    ]


def _blocked_by(waiting: Waiting) -> list[str]:
    return [each.why for each in waiting.blocked_by] or ["nothing: a slot has just become free"]


#: Rules that suspend the bound on overtaking, in words.
_RULES = {"pause": "a pause", "type limit": "the limit of its type", "key": "a key", "reserve": "a reserve"}


def _overtaken(waiting: Waiting) -> str:
    if waiting.bound_s is None or waiting.passed_until_s is None:
        rule = next((_RULES[each.rule] for each in waiting.blocked_by if each.rule in _RULES), "a rule")
        return f"no bound while {rule} keeps it back"
    bound = (
        f"only by jobs published less than {waiting.bound_s:,.2f} s after it: until {moment(waiting.passed_until_s)}"
    )
    return f"{bound}, while its key has room" if waiting.key else bound


def _wait(waiting: Waiting) -> str:
    if waiting.estimate_s is None:
        return f"unknown: {_why_unknown(waiting)}"
    if waiting.kept_back and waiting.key and waiting.key.key.starts:
        return f"~{about(waiting.estimate_s)} until its key lets it start, an estimate"
    if waiting.kept_back and waiting.key and waiting.key.run_s is not None:
        run = duration(waiting.key.run_s)
        return f"~{about(waiting.estimate_s)}, estimated from recent runs of this key: {run} each"
    return f"{duration(waiting.estimate_s)} more, estimated from recent run times"


def _why_unknown(waiting: Waiting) -> str:
    """Return the reason why there is no estimate. Jobs may have ended untimed: of short ones only a few are timed."""
    if waiting.is_paused:
        return "it is paused"
    if waiting.kept_back and waiting.key and waiting.key.key.limit == 0:
        return "its key is closed"
    if not waiting.score.slots_that_fit:
        return "no live worker serves the type"
    if not sum(each.slots for each in waiting.slots):
        return "the workers that serve the type refuse it for the moment"
    return "no run time of such jobs is known yet"


def _group(group: Group) -> str:
    demand = " on demand" if group.on_demand else ""
    kept_back = " that wait for a key" if group.kept_back else ""
    return f"{group.jobs} of {group.type} priority {group.priority}{demand}{kept_back}"


def _slots(each: Slots) -> str:
    return f"[{' '.join(each.types)}]: {many(each.slots, 'slot')} on {many(each.workers, 'worker')}, {each.free} free"
