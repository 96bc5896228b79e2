"""The output of ``celery affinity dead`` for people."""

from collections.abc import Sequence

from ..observe.dead_letters import DeadLetter, Shown
from .words import many, moment, paragraph, table

#: Largest number of characters of an error in a table.
_WHY_IN_A_ROW = 80


def letters(found: Sequence[DeadLetter]) -> str:
    """Return dead letters as a table."""
    return table(("ended", "reason", "type", "task", "task id", "why"), [_letter_row(letter) for letter in found])


def _letter_row(letter: DeadLetter) -> tuple[str, ...]:
    why = letter.why or ""
    if len(why) > _WHY_IN_A_ROW:
        why = f"{why[:_WHY_IN_A_ROW]}..."
    return moment(letter.ended_s), letter.reason, letter.type, letter.task, letter.task_id, why


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
        ("published", moment(shown.enqueued_s)),
        ("message", message),
        *((name, str(value)) for name, value in shown.headers.items()),
    ]
    return paragraph(rows)


def _came_back(deliveries: int) -> str:
    return f", after it came back {many(deliveries, 'time')}" if deliveries else ""
