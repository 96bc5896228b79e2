"""Report the recurring calls, and the time since a match last postponed them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from redis.exceptions import NoPermissionError

from ..clock import SECOND_US
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Reader
from ..schema.values import decode_number, decode_part, decode_text
from .render import Table, approximate_text, duration_text
from .report import Answer, Source, report

#: Maximum number of recurring calls that are shown, and number of signatures per round trip.
MAX_SHOWN = 5_000
_SIGNATURES = 20

#: Maximum number of recurring calls that are read for one metric. The calls due next are read first.
MAX_RECURRING_READ = 1_000

#: Fields of a recurring call's hash, in the order of `_row`.
_FIELDS = ("task", "type", "merge", "stale", "since", "due", "suspended", "matched", "by", "app")


@dataclass(frozen=True)
class RecurringRow(CohortRow):
    """A recurring call. *app*: the app whose app.conf has it, or "" if it was declared at run time.

    *fires_in_s*: 0 or less if it is due, None while it is suspended. *matched_ago_s*: seconds since a call or the end
    of a run postponed it, or None. *matched_by*: id of that task.
    """

    name: str
    task: str
    type: str
    merge_key: str
    stale_after_s: float
    since: str
    fires_in_s: float | None
    matched_ago_s: float | None
    matched_by: str
    app: str
    is_suspended: bool
    signature: str


def recurring_rows(reader: Reader) -> list[RecurringRow]:
    """Return up to `MAX_SHOWN` recurring calls, ordered by due time, suspended calls last.

    A user without the right to read signatures gets "" for each.
    """
    now_us = reader.now_us()
    names = [decode_text(name) for name in reader.ask_one("zrange", reader.key("recurring"), 0, MAX_SHOWN - 1)]
    rows = reader.ask([("hmget", reader.key("recurring_call", name), _FIELDS) for name in names])
    signatures = _signatures(reader, names)
    parsed = (_row(*call, now_us) for call in zip(names, rows, signatures, strict=True))
    return [row for row in parsed if row is not None]


def without_arguments(rows: Sequence[RecurringRow]) -> list[RecurringRow]:
    """Return *rows* without the signatures, which contain the arguments of the calls."""
    return [replace(row, signature="") for row in rows]


def stale_s(reader: Reader, now_us: int) -> float | None:
    """Return the age in seconds of the oldest last match of a recurring call in force, or None.

    A match is a call, or a firing, that postpones the recurring call.
    """
    names = reader.ask_one("zrange", reader.key("recurring"), 0, MAX_RECURRING_READ - 1)
    keys = [reader.key("recurring_call", decode_text(name)) for name in names]
    rows = reader.ask([("hmget", key, ["matched", "suspended"]) for key in keys])
    ages_us = [now_us - decode_number(matched) for matched, suspended in rows if matched and not suspended]
    return max(0, *ages_us) / SECOND_US if ages_us else None


def _signatures(reader: Reader, names: Sequence[str]) -> list[bytes | None]:
    signatures: list[bytes | None] = []
    try:
        for first in range(0, len(names), _SIGNATURES):
            page = names[first : first + _SIGNATURES]
            signatures += reader.ask([("get", reader.key("signature", name)) for name in page])
    except NoPermissionError:
        return [None] * len(names)
    return signatures


def _row(name: str, fields: Sequence[bytes | None], signature: bytes | None, now_us: int) -> RecurringRow | None:
    """Return the row of a recurring call, or None if its hash is corrupt."""
    task, type_, merge_key, stale, since, due, suspended, matched, by, app = map(decode_text, fields)
    stale_us, due_us, matched_us = decode_number(stale), decode_number(due, -1), decode_number(matched, -1)
    if not type_ or stale_us <= 0 or due_us < 0:
        return None
    return RecurringRow(
        name=decode_part(name),
        task=task,
        type=decode_part(type_),
        merge_key=decode_part(merge_key),
        stale_after_s=stale_us / SECOND_US,
        since=since,
        fires_in_s=None if suspended else (due_us - now_us) / SECOND_US,
        matched_ago_s=None if matched_us < 0 else max(0, now_us - matched_us) / SECOND_US,
        matched_by=decode_part(by),
        app=decode_part(app),
        is_suspended=bool(suspended),
        signature=decode_text(signature),
    )


def _last_match(row: RecurringRow) -> str:
    if row.matched_ago_s is None:
        return "-"
    return f"{duration_text(row.matched_ago_s)} ago" + (f", task {row.matched_by}" if row.matched_by else "")


_CALLS = Table[RecurringRow](
    {
        "name": "name",
        "task": "task",
        "type": "type",
        "key": "merge_key",
        "every": lambda row: approximate_text(row.stale_after_s) + (" from the end" if row.since == "end" else ""),
        "last match": _last_match,
        "fires in": lambda row: "paused" if row.fires_in_s is None else duration_text(max(0.0, row.fires_in_s)),
        "declared by": lambda row: row.app or "run time",
    },
    empty="there are no recurring calls",
)


@report(
    "recurring list",
    "/api/recurring",
    "Recurring calls: what they match, the last match, and the next firing",
    text=_CALLS.text,
)
def list_recurring(source: Source) -> Answer[list[RecurringRow]]:
    """List the recurring calls: what they match, the last match, and the next firing."""
    answer = source.rows(lambda scheduler: recurring_rows(scheduler.reader))
    return replace(answer, report=without_arguments(answer.report)) if source.hidden_reason else answer
