"""The fields of a job in one table: accepted values, the place in the job's hash, and who sets each.

A field goes into names of keys, lists of words and sums that every worker reads, so one bad field would stop them all:
publishers check it, and so do the scripts, before anything is written. `NewJob` has a value for each field, from a call
(`client.envelope.as_job`) or from stock Celery's list (`dispatcher.ingest`). Lua that deals with all fields is made
from the table; the functions' check is ``lua/jobs/job_check.lua``, which a test compares with the patterns here.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from ..errors import OptionError, refuse
from . import marks, redis_keys
from .bounds import Bound
from .job_rules import parts_of
from .protocol import (
    BATCH,
    LONGEST_ID,
    LONGEST_KEY,
    LONGEST_NUMBER,
    LONGEST_PATIENCE,
    MARK,
    MAX_PRIORITY,
    MERGES,
    MOST_STAMP_BYTES,
    MOST_STAMPS,
)


class JobField(NamedTuple):
    """One field of a job, as the scripts take it."""

    set_by: str
    """The origin of the value, in words."""
    accepted: str
    """The accepted values, in words."""
    pattern: str
    """Pattern of the whole text; "": anything is accepted."""
    otherwise: str | int | None = None
    """Value of a field that a message leaves out; None: no job is without the field."""
    kept: str = ""
    """Name of the field in the job's hash that has the value unchanged; "": see the comment in `FIELDS`."""


_ENCODED = "[A-Za-z0-9_.~%-]"
TEXT = f"{_ENCODED}*"
_STAMP = "[A-Za-z0-9_.~%:-]+"
_COUNT = f"[1-9][0-9]{{0,{LONGEST_NUMBER - 1}}}"
#: µs, few enough to be added to a time exactly, in a script as well.
_TIME = f"[1-9][0-9]{{0,{LONGEST_PATIENCE - 1}}}"
#: At least 2.
_SEVERAL = f"[2-9]|[1-9][0-9]{{1,{LONGEST_NUMBER - 1}}}"
_MERGE = f"merge={_ENCODED}{{1,{LONGEST_KEY}}} most=(?:{_SEVERAL}) bytes={_COUNT}(?: wait={_TIME}/{_TIME})?"
_KEY = f"key={_ENCODED}{{1,{LONGEST_KEY}}} (?:limit={_COUNT}|limit=1 order=1|rate={_COUNT}/{_COUNT})"
_NUMBER = f"-?[0-9]{{1,{LONGEST_NUMBER - 1}}}|[0-9]{{{LONGEST_NUMBER}}}"

#: name -> field, in the order of the scripts' arguments.
FIELDS: dict[str, JobField] = {
    "id": JobField(  # in the names of its keys
        "the transport, once for each queue of a call",
        f"1 to {LONGEST_ID} printable ASCII characters without a blank, not as the id of a batch ends ({BATCH!r})",
        rf"[!-~]{{1,{LONGEST_ID}}}(?<!\{BATCH})(?<!\{BATCH}{MARK})",
    ),
    "type": JobField(
        "affinity of the task, or the queue",
        "a name that is not empty, percent-encoded",
        f"{_ENCODED}+",
        kept="type",
    ),
    "mode": JobField("on_demand of the call", "'queued' or 'demand'", "queued|demand", "queued"),  # in its lane's name
    "priority": JobField(  # in its lane's name; 10 is highest, by its app's order
        "priority of the call, or of the task",
        f"a whole number from 0 to {MAX_PRIORITY}",
        f"[0-9]|{MAX_PRIORITY}",
        0,
    ),
    "delay_us": JobField(  # "enqueued" has the due time; the publisher's clock does not count
        "countdown or eta of the call",
        f"a whole number of microseconds, of up to {LONGEST_NUMBER} characters",
        _NUMBER,
        0,
    ),
    "task_id": JobField("Celery", "a text, percent-encoded", TEXT, "", kept="task"),
    "task_name": JobField("Celery", "a text in UTF-8", r"[^\ud800-\udfff]*", "", kept="name"),
    "expires_us": JobField(  # "expires" has the time of the end, if there is one
        "expires of the call",
        f"nothing, or a whole number of microseconds, of up to {LONGEST_NUMBER} characters",
        f"|{_NUMBER}",
        "",
    ),
    "stamps": JobField(  # "stamps" has them, if there are any
        "stamps of the call",
        f"names and values ('name:value'), percent-encoded: {MOST_STAMPS} at most, {MOST_STAMP_BYTES:,} bytes",
        rf"(?=[^\n]{{0,{MOST_STAMP_BYTES}}}(?:\n|\Z)) *(?:{_STAMP}(?: +{_STAMP}){{0,{MOST_STAMPS - 1}}} *)?",
        "",
    ),
    "rules": JobField(  # "rules" has them (`job_rules.as_kept`), if there are any; then the id has a mark (`marks`)
        "merge, exclusive or rate of the task, or of the call",
        f"nothing, or 'merge=K most=N bytes=N' or 'merge=K most=N bytes=N wait=MICROSECONDS/MICROSECONDS' of a job "
        f"whose id has {MERGES!r} at its end (N of calls at least 2), or 'key=K limit=N', 'key=K limit=1 order=1' or "
        f"'key=K rate=N/MICROSECONDS' if the id ends with {MARK!r}, or both, with {MERGES + MARK!r} at the end; K of "
        f"up to {LONGEST_KEY} characters, percent-encoded",
        f"(?:{_MERGE}(?: {_KEY})?|{_KEY})?",
        "",
    ),
    "message": JobField("kombu", "any bytes", ""),  # in a key of its own
}

_NAMES = tuple(FIELDS)
_ID, _RULES = _NAMES.index("id"), _NAMES.index("rules")

#: Name, place and check of each field that is checked, those at the end that may hold a line break.
_CHECKS = sorted(
    (
        (name, place, re.compile(field.pattern).fullmatch)
        for place, (name, field) in enumerate(FIELDS.items())
        if field.pattern
    ),
    key=lambda check: check[2]("\n") is not None,
)
_CHECKS_OF_TEXTS = [check for check in _CHECKS if check[2]("\n")]

#: The other fields, as lines of one text: one match for all takes a third of the time of a match for each field.
_IN_LINES = [check for check in _CHECKS if check not in _CHECKS_OF_TEXTS]
_LINES = itemgetter(*(place for _, place, _ in _IN_LINES))
_GOOD_LINES = re.compile("\n".join(f"(?:{FIELDS[name].pattern})" for name, _, _ in _IN_LINES)).fullmatch


def bad(arguments: Sequence[object]) -> str | None:
    """Return the name of a field in *arguments*, which are in the order of `FIELDS`, that is not accepted, or None."""
    for name, place, matches in _CHECKS_OF_TEXTS if _GOOD_LINES("\n".join(map(str, _LINES(arguments)))) else _CHECKS:
        if not matches(str(arguments[place])):
            return name
    return None if _is_marked_so(str(arguments[_ID]), str(arguments[_RULES])) else "rules"


def _is_marked_so(job_id: str, rules: str) -> bool:
    """Return whether the marks of *job_id* are those of a job with *rules*."""
    if not rules:
        return not job_id.endswith((MARK, MERGES))
    of_merging, of_key = parts_of(rules)
    return marks.has_key(job_id) == bool(of_key) and marks.merges(job_id) == bool(of_merging)


def refused(name: str, arguments: Sequence[object]) -> OptionError:
    """Return the error for a message of which the field *name* is not accepted."""
    return refuse(f"{name} of a job", FIELDS[name].accepted, arguments[_NAMES.index(name)])


@dataclass(slots=True)  # not frozen: each publish makes one, and a frozen one takes three times as long to make
class NewJob:
    """A job to publish. *delay_us*: time until the job is due. *expires_us*: time until it ends if it still waits.

    *stamps*: words by which the job can be revoked, as `revokes.stamp` writes them. *rules*: the job's key, as `keyed`
    writes it. *readable*: False if only the message and the list that it was found in are known. *bound*: how many jobs
    of the type may wait; None: any number, or the job is part of work that was accepted before. Raises OptionError for
    a value that is no text, or none in UTF-8.
    """

    id: str
    type: str
    message: bytes | str
    on_demand: bool = False
    priority: int = 0
    delay_us: int = 0
    task_id: str = ""
    task_name: str = ""
    expires_us: int | None = None
    stamps: Sequence[str] = ()
    rules: str = ""
    readable: bool = True
    bound: Bound | None = None
    arguments: tuple[str | bytes | int, ...] = field(init=False, repr=False)
    """Arguments of the scripts that make a job, in the order of `FIELDS`: on_demand is their "mode"."""

    def __post_init__(self) -> None:
        try:
            self.arguments = (
                self.id,
                redis_keys.encode(self.type),
                "demand" if self.on_demand else "queued",
                self.priority,
                self.delay_us,
                redis_keys.encode(self.task_id),
                self.task_name,
                "" if self.expires_us is None else self.expires_us,
                " ".join(self.stamps),
                self.rules,
                self.message,
            )
        except (TypeError, ValueError) as exc:
            said = (self.type, self.task_id, self.stamps)
            raise OptionError(f"type, task id and stamps of a job must be texts in UTF-8, got: {said!r}") from exc

    def checked(self) -> "NewJob":
        """Return the job. Raises OptionError if a field is not accepted: the script would refuse the job."""
        name = bad(self.arguments)
        if name is not None:
            raise refused(name, self.arguments)
        return self


def kept(job: NewJob) -> dict[str, Any]:
    """Return what *job* has for the fields that its hash has unchanged."""
    return {name: getattr(job, name) for name, field in FIELDS.items() if field.kept}
