"""The output of ``celery affinity dead`` for people."""

from collections.abc import Sequence

from ..observe.dead_letters import DeadLetter, LetterDetails
from .words import by_cohort, many, moment, paragraph

#: Largest number of characters of an error in a table.
_WHY_IN_A_ROW = 80


def letters(found: Sequence[DeadLetter], *, is_filtered: bool = False) -> str:
    """Return dead letters as a table."""
    if not found:
        return "no dead letter matches" if is_filtered else "there are no dead letters"
    is_any_merged = any(each.calls > 1 for each in found)
    return by_cohort(
        found,
        ("ended", "reason", *(["calls"] if is_any_merged else []), "type", "task", "task id", "why"),
        [_letter_row(letter, is_any_merged) for letter in found],
    )


def _letter_row(letter: DeadLetter, has_calls: bool) -> tuple[str, ...]:
    why = letter.why or ""
    if len(why) > _WHY_IN_A_ROW:
        why = f"{why[:_WHY_IN_A_ROW]}..."
    calls = [str(letter.calls)] if has_calls else []
    return moment(letter.ended_s), letter.reason, *calls, letter.type, letter.task, letter.task_id, why


def letter(shown: LetterDetails) -> str:
    """Return a dead letter as a few lines."""
    found = shown.letter
    is_gone = "gone: the server no longer has it, so the job cannot be replayed"
    message = f"{shown.message_bytes:,} bytes" if found.replayable else is_gone
    rows = [
        ("task", f"{found.task_id}  {found.task}"),
        ("job", found.job_id),
        *([("cohort", found.cohort)] if found.cohort else []),
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
