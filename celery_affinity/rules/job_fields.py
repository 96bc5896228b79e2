"""The fields of a job in one table: accepted values, the place in the job's hash, and who sets each.

A field goes into names of keys, lists of words and sums that every worker reads, so one bad field would stop them all:
publishers check it (`new_job`), and so do the arrows, before anything is written. Lua that deals with all fields is
made from the table; the arrows' own check is ``lua/jobs/job_check.lua``, which a test compares with the patterns here.
"""

from typing import NamedTuple

from .known_marks import BATCH, KEYED, MANY_KEYED, MERGES, OF_KEYS, TENANTED, WORDS
from .protocol import (
    BY_SETTINGS,
    LONGEST_ID,
    LONGEST_KEY,
    LONGEST_NUMBER,
    LONGEST_PATIENCE,
    MAX_PRIORITY,
    MOST_STAMP_BYTES,
    MOST_STAMPS,
    PREEMPTIBLE,
    RATE_PREFIX,
    TENANT_PREFIX,
)


class JobField(NamedTuple):
    """One field of a job, as the arrows take it."""

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
#: µs, few enough to be added to a time exactly, in an arrow as well.
_TIME = f"[1-9][0-9]{{0,{LONGEST_PATIENCE - 1}}}"
#: At least 2.
_SEVERAL = f"[2-9]|[1-9][0-9]{{1,{LONGEST_NUMBER - 1}}}"
_MERGE = f"merge={_ENCODED}{{1,{LONGEST_KEY}}} most=(?:{_SEVERAL}) bytes={_COUNT}(?: wait={_TIME}/{_TIME})?"
_LIMIT, _RATE = f"(?:limit={_COUNT}|limit=1 order=1)", f"rate={_COUNT}/{_COUNT}"
_KEY = f"key={_ENCODED}{{1,{LONGEST_KEY}}}"
_OF_RATE, _EXCLUSIVE = (
    f"(?=key={RATE_PREFIX}){_KEY} {_RATE}",
    f"(?!key=(?:{RATE_PREFIX}|{TENANT_PREFIX})){_KEY} {_LIMIT}",
)
_OF_TENANT = f"(?=key={TENANT_PREFIX}){_KEY} quota={BY_SETTINGS}(?: {PREEMPTIBLE})?"
_BEFORE_TENANT = f"(?:{_OF_RATE}|{_EXCLUSIVE}|{_OF_RATE} {_EXCLUSIVE}|{_EXCLUSIVE} {_OF_RATE})"
_KEYS = f"(?:{_BEFORE_TENANT}(?: {_OF_TENANT})?|{_OF_TENANT})"
_PARTS = (_MERGE, *(f"{mark.word}={_ENCODED}{{1,{LONGEST_KEY}}}" for mark in WORDS), _KEYS)
_WORDS = ", ".join(f"'{mark.word}=K' with {mark.character!r} before the marks of keys" for mark in WORDS)
#: Some of the parts, in their order.
_RULES = "|".join(
    first + "".join(f"(?: {part})?" for part in _PARTS[nth:]) for nth, first in enumerate(_PARTS, start=1)
)
_NUMBER = f"-?[0-9]{{1,{LONGEST_NUMBER - 1}}}|[0-9]{{{LONGEST_NUMBER}}}"

#: name -> field, in the order of the arrows' arguments: fields that few messages have are last (`new_job.in_short`).
FIELDS: dict[str, JobField] = {
    "id": JobField(  # in the names of its keys
        "the transport, once for each queue of a call",
        f"1 to {LONGEST_ID} printable ASCII characters without a blank, not as the id of a batch ends ({BATCH!r})",
        rf"[!-~]{{1,{LONGEST_ID}}}(?<!\{BATCH})(?<!\{BATCH}[{''.join(OF_KEYS)}])",
    ),
    "type": JobField(
        "affinity of the task, or the queue",
        "a name that is not empty, percent-encoded",
        f"{_ENCODED}+",
        kept="type",
    ),
    "task_id": JobField("Celery", "a text, percent-encoded", TEXT, "", kept="task"),
    "task_name": JobField("Celery", "a text in UTF-8", r"[^\ud800-\udfff]*", "", kept="name"),
    "message": JobField("kombu", "any bytes", ""),  # in a key of its own
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
    "rules": JobField(  # "rules" has them (`rule_texts.as_kept`), if there are any; then the id has a mark (`marks`)
        "merge, locality, exclusive, rate, tenant and preemptible of the task, or of the call",
        f"nothing, or 'merge=K most=N bytes=N' or 'merge=K most=N bytes=N wait=MICROSECONDS/MICROSECONDS' of a job "
        f"whose id has {MERGES!r} at its end (N of calls at least 2), or one key if the id ends with {KEYED!r}: "
        f"'key=K limit=N', 'key=K limit=1 order=1', or 'key=K rate=N/MICROSECONDS', whose K begins with "
        f"{RATE_PREFIX!r}; or 'key=K quota={BY_SETTINGS}' or 'key=K quota={BY_SETTINGS} {PREEMPTIBLE}', whose K "
        f"begins with {TENANT_PREFIX!r}, if it ends with {TENANTED!r}; or several of these kinds, the last one last, "
        f"if it ends with {MANY_KEYED!r}; or merging, with {MERGES!r} before the other mark, and keys; and before the "
        f"keys {_WORDS}; K of up to {LONGEST_KEY} characters, percent-encoded",
        f"(?:{_RULES})?",
        "",
    ),
}

#: How many fields each call has; one of a single job may leave out all others, if they have their defaults.
LEAST_FIELDS = list(FIELDS).index("message") + 1
