"""What the commands print for people: tables and paragraphs, one function for each report."""

import textwrap
import time
from collections.abc import Collection, Sequence

import click

from ..check import Facts, Finding, Level
from ..observe.claim_order import Group, Next
from ..observe.dead_letters import DeadLetter, Shown
from ..observe.explain import Explanation
from ..observe.status import Status, TypeStatus, WorkerStatus
from ..observe.waiting import Slots, Waiting
from ..rules.settings import PREFIX, Settings
from ..rules.type_name import did_you_mean
from ..server.runtime_settings import RuntimeSetting


def status(found: Status) -> str:
    """Return types, workers and counts as text."""
    types = table(
        ("type", "pending", "on demand", "oldest wait", "free slots", "busy slots", ""),
        [_type_row(each) for each in found.types],
        red=[each.unserved for each in found.types],
    )
    workers = table(
        ("worker", "types", "slots", "free", "last beat", ""), [_worker_row(each) for each in found.workers]
    )
    return f"{types}\n\n{workers}\n\nscheduled for later: {found.scheduled}   dead letters: {found.dead}"


def _type_row(each: TypeStatus) -> tuple[str, ...]:
    wait = "-" if each.oldest_wait_s is None else duration(each.oldest_wait_s)
    note = "no live worker serves it" if each.unserved else ""
    return each.type, str(each.pending), str(each.on_demand), wait, str(each.free), str(each.busy), note


def _worker_row(each: WorkerStatus) -> tuple[str, ...]:
    notes = ["drains"] if each.draining else ["takes no jobs"] if not each.types else []
    notes += ["its event loop stands still"] if each.stalled else []
    notes += [f"rate limit: takes no more {', '.join(each.withdrawn)} for a moment"] if each.withdrawn else []
    note = "; ".join(notes)
    beat = f"{duration(each.last_beat_s)} ago"
    return each.name, ",".join(each.types), str(each.slots), str(each.free), beat, note


#: Characters of an error in a table.
_WHY_IN_A_ROW = 80

_COLOURS = {Level.ERROR: "red", Level.WARNING: "yellow", Level.NOTE: "cyan"}


def findings(facts: Facts, found: Sequence[Finding]) -> str:
    """Return what a check looked at, its findings, and their number by level."""
    blocks = [_looked_at(facts), *(_finding(each) for each in found), _counts(found)]
    return "\n\n".join(blocks)


def _looked_at(facts: Facts) -> str:
    server, fleet = facts.server, facts.fleet
    parts = [f"app {facts.app.name}", f"broker {facts.app.broker}"]
    if server is not None and server.refused is None:
        parts.append(f"{server.kind} {'.'.join(map(str, server.version))}")
    if fleet is not None:
        answered = _many(len(fleet.answers), "worker")
        parts.append(f"{len(fleet.members)} alive, {answered} answered")
    else:
        parts.append("workers not looked at")
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
        return "nothing found"
    return ", ".join(_many(sum(each.level is level for each in found), level) for level in Level)


def letters(found: Sequence[DeadLetter]) -> str:
    """Return dead letters as a table."""
    return table(("ended", "reason", "type", "task", "task id", "why"), [_letter_row(letter) for letter in found])


def _letter_row(letter: DeadLetter) -> tuple[str, ...]:
    why = letter.why or ""
    if len(why) > _WHY_IN_A_ROW:
        why = f"{why[:_WHY_IN_A_ROW]}..."
    return _moment(letter.ended_s), letter.reason, letter.type, letter.task, letter.task_id, why


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
        (
            "reason",
            f"{found.reason} at {_moment(found.ended_s)}, after {_many(found.deliveries, 'delivery', 'deliveries')}",
        ),
        *([("why", found.why)] if found.why else []),
        ("published", _moment(shown.enqueued_s)),
        ("message", message),
        *((name, str(value)) for name, value in shown.headers.items()),
    ]
    return _paragraph(rows)


def upcoming(found: Sequence[Next]) -> str:
    """Return pending jobs as a table, the next one first."""
    return table(
        ("", "type", "priority", "mode", "score", "waited", "task", "task id", ""),
        [_next_row(number, each) for number, each in enumerate(found, 1)],
        red=[not each.served for each in found],
    )


def nothing_pending(types: Sequence[str], served: Collection[str]) -> str:
    """Return the words for an empty table, for each of *types* or for all. *served*: types with live workers."""
    if not types:
        return "nothing is pending"
    return "\n".join(f"nothing is pending of type {type_!r}{_unless_served(type_, served)}" for type_ in types)


def _unless_served(type_: str, served: Collection[str]) -> str:
    return "" if type_ in served else f", which no live worker serves{did_you_mean(type_, served)}"


def _next_row(number: int, each: Next) -> tuple[str, ...]:
    note = "" if each.served else "no live worker serves it"
    score = f"{each.score:,.1f}" if each.served else "-"
    mode, wait = _mode(each.on_demand), duration(each.waited_s)
    return str(number), each.type, str(each.priority), mode, score, wait, each.task, each.task_id, note


def settings(found: Sequence[RuntimeSetting]) -> str:
    """Return settings as a table; a setting that differs from this app's app.conf says why."""
    defaults = Settings()
    return table(
        ("setting", "in force", "app.conf", "default", ""),
        [
            (PREFIX + each.name, str(each.value), str(each.own), str(getattr(defaults, each.name)), _setting_note(each))
            for each in found
        ],
        red=[each.disputed for each in found],
    )


def _setting_note(each: RuntimeSetting) -> str:
    notes = []
    if each.changed_at_run_time:
        notes.append(f"changed at run time, a reset goes back to {each.conf}")
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
        ("needs", f"type {found.type}, priority {found.priority}, {_mode(found.on_demand)}"),
        *([("waits for", _moment(found.due_s or 0))] if found.state == "scheduled" else []),
        *([("worker", found.worker)] if found.worker else []),
        *([("reason", found.reason)] if found.reason else []),
        *([("why", found.why)] if found.why else []),
        *([("note", found.note)] if found.note else []),
        *([("came back", f"{found.deliveries} times from a worker that died")] if found.deliveries else []),
        *([("other jobs", f"{len(found.other_jobs)} of the same task have not ended")] if found.other_jobs else []),
        *(_waiting_rows(found.waiting) if found.waiting else []),
    ]
    return _paragraph(rows)


def _state(found: Explanation) -> str:
    since_s, now_s = found.since_s or 0, found.now_s or 0
    return f"{found.state} since {_moment(since_s)} ({duration(max(0, now_s - since_s))})"


def _waiting_rows(waiting: Waiting) -> list[tuple[str, str]]:
    score = waiting.score
    terms = f"{score.priority:,.1f} priority + {score.age:,.1f} age + {score.rarity:,.1f} rarity"
    passed = f"until {_moment(waiting.passed_until_s)}"
    on_demand = f" + {score.on_demand:,.1f} on demand" if score.on_demand else ""
    estimate = (
        f"unknown: {_why_unknown(waiting)}"
        if waiting.estimate_s is None
        else (f"{duration(waiting.estimate_s)} more, if jobs go on to take as long as lately (an estimate)")
    )
    return [
        ("score", f"{score.total:,.1f} = {terms} ({_many(score.slots_that_fit, 'slot')} that fit){on_demand}"),
        ("rank", f"{waiting.rank_in_type} of its type, {waiting.rank} of all that its slots could take"),
        ("ahead", ", ".join(_group(group) for group in waiting.ahead) or "none"),
        *[("slots" if number == 0 else "", _slots(each)) for number, each in enumerate(waiting.slots)],
        ("blocked by", waiting.blocked_by),
        ("overtaken", f"only by jobs that come less than {waiting.bound_s:,.2f} s after it: {passed}"),
        ("wait", estimate),
    ]


def _why_unknown(waiting: Waiting) -> str:
    """Return why there is no estimate: jobs may have ended, and none been timed, since few of the short ones are."""
    if not waiting.score.slots_that_fit:
        return "no live worker serves the type"
    if not sum(each.slots for each in waiting.slots):
        return "the workers that serve the type take none of it for a moment"
    return "how long such jobs take is not known yet"


def _group(group: Group) -> str:
    mode = " on demand" if group.on_demand else ""
    return f"{group.jobs} of {group.type} priority {group.priority}{mode}"


def _slots(each: Slots) -> str:
    return f"[{' '.join(each.types)}]: {_many(each.slots, 'slot')} on {_many(each.workers, 'worker')}, {each.free} free"


# -- words


def _mode(on_demand: bool) -> str:
    return "on demand" if on_demand else "queued"


def _many(number: int, thing: str, things: str = "") -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {things or thing + 's'}"


def _paragraph(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{click.style(name.ljust(12), bold=True)}{printable(text)}" for name, text in rows)


def _moment(unix_s: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
    except (ValueError, OverflowError, OSError):  # the row was spoiled
        return "?"


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], red: Sequence[bool] = ()) -> str:
    """Return rows in columns, in red where *red* says so."""
    rows = [tuple(printable(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [click.style(_line(header, widths), bold=True)]
    for number, row in enumerate(rows):
        line = _line(row, widths)
        lines.append(click.style(line, fg="red") if red and red[number] else line)
    return "\n".join(lines)


def printable(cell: str) -> str:
    """Return *cell* in one line of printable characters: names of types and tasks may hold any."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in cell)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
