"""The fields of a job in one table: accepted values, the place in the job's hash, and who sets each.

A field goes into names of keys, lists of words and sums that every worker reads, so one bad field would stop them all:
publishers check it (`new_job`), and so do the arrows, before anything is written. Lua that deals with all fields is
made from the table; the arrows' own check is ``lua/jobs/validate.lua``, which a test compares with the patterns here.

The marks at the end of a job's id, which arrows and workers read instead of the job: see `known_marks`.

A job to publish: a value for each field of a job (`job_fields`), checked before it goes to the server.

Made from a call (`client.envelope.as_job`) or from stock Celery's list (`dispatcher.ingest`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from ..errors import OptionError, refuse
from . import rules_codec, values
from .bounds import Bound
from .constants import (
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
from .rules_codec import (
    ALL,
    BATCH,
    HINT,
    HINTED,
    KEYED,
    KEYS,
    MANY_KEYED,
    MERGES,
    OF_KEYS,
    RULE,
    TENANTED,
    WORDS,
    keys_in,
    split_rules,
    suffix_characters,
    value_in,
)
from .values import DEMAND, QUEUED


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


_AT_END = re.compile("".join(f"[{re.escape(suffix_characters(place))}]?" for place in (HINT, RULE, KEYS)) + r"\Z")


def suffix_of(job_id: str) -> str:
    """Return all marks of *job_id*; "" for none."""
    found = _AT_END.search(job_id)
    return found[0] if found else ""


def has_key(job_id: str) -> bool:
    return job_id.endswith(OF_KEYS)


def has_many_keys(job_id: str) -> bool:
    return job_id.endswith(MANY_KEYED)


def has_tenant_alone(job_id: str) -> bool:
    """Return whether the only key of the job is that of its tenant."""
    return job_id.endswith(TENANTED)


def key_suffix(job_id: str) -> str:
    """Return the mark of keys at the end of *job_id*; "" for none."""
    return job_id[-1:] if has_key(job_id) else ""


def is_merged(job_id: str) -> bool:
    """Return whether *job_id* is that of one call, which merges with others that wait when it does."""
    return job_id.removesuffix(key_suffix(job_id)).endswith(MERGES)


def has_hint(job_id: str) -> bool:
    return HINTED in suffix_of(job_id)


def is_batch(job_id: str) -> bool:
    return job_id.removesuffix(key_suffix(job_id)).endswith(BATCH)


def batch_of(first: str) -> str:
    """Return the id of the batch that begins with the call *first*."""
    mark = key_suffix(first)
    return first.removesuffix(mark).removesuffix(MERGES) + BATCH + mark


def suffix_for(rules: str) -> str:
    """Return the marks of a job whose rules are this text (`rule_texts`)."""
    merging, keys = split_rules(rules)
    said = {mark.character for mark in WORDS if value_in(rules, mark.word)}
    said |= {MERGES if merging else "", _key_mark_for(keys)}
    return "".join(character for character in ALL if character in said)


def _key_mark_for(keys: str) -> str:
    found = keys_in(keys)
    if len(found) == 1:
        return TENANTED if found[0].stated is None else KEYED
    return MANY_KEYED if found else ""


def with_suffix(job_id: str, rules: str) -> str:
    """Return *job_id* with the marks of a job whose rules are this text, "" for none."""
    return f"{job_id}{suffix_for(rules)}" if rules else job_id


_NAMES = tuple(FIELDS)
_ID, _VALID_RULES = _NAMES.index("id"), _NAMES.index("rules")

#: Values that a call of one job leaves out at its end.
_DEFAULTS = tuple(field.otherwise for field in FIELDS.values())[LEAST_FIELDS:]

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


def first_invalid_field(arguments: Sequence[object]) -> str | None:
    """Return the name of a field in *arguments*, which are in the order of `FIELDS`, that is not accepted, or None."""
    for name, place, matches in _CHECKS_OF_TEXTS if _GOOD_LINES("\n".join(map(str, _LINES(arguments)))) else _CHECKS:
        if not matches(str(arguments[place])):
            return name
    return None if _is_marked_so(str(arguments[_ID]), str(arguments[_VALID_RULES])) else "rules"


def _is_marked_so(job_id: str, rules: str) -> bool:
    """Return whether the marks of *job_id* are those of a job with *rules*."""
    if not rules:
        return not job_id.endswith(rules_codec.ALL)
    return suffix_of(job_id) == suffix_for(rules)


def job_words(arguments: Sequence[str | bytes | int]) -> Sequence[str | bytes | int]:
    """Return the *arguments* of one job without the last ones that have their defaults: of most, all that may have."""
    length = len(arguments)
    while length > LEAST_FIELDS and arguments[length - 1] == _DEFAULTS[length - 1 - LEAST_FIELDS]:
        length -= 1
    return arguments[:length]


def refusal(name: str, arguments: Sequence[object]) -> OptionError:
    """Return the error for a message of which the field *name* is not accepted."""
    return refuse(f"{name} of a job", FIELDS[name].accepted, arguments[_NAMES.index(name)])


@dataclass(slots=True)  # not frozen: each publish makes one, and a frozen one takes three times as long to make
class NewJob:
    """A job to publish. *delay_us*: time until the job is due. *expires_us*: time until it ends if it still waits.

    *stamps*: words by which the job can be revoked, as `revokes.stamp` writes them. *rules*: how it merges, and its
    keys, as `rule_texts` writes them. *readable*: False if only message and list that it was found in are known.
    *bound*: how many jobs of the type may wait; None: any number, or the job is part of work that was accepted before.
    Raises OptionError for a value that is no text, or none in UTF-8.
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
    """Arguments of the arrows that make a job, in the order of `FIELDS`: on_demand is their "mode"."""

    def __post_init__(self) -> None:
        try:
            self.arguments = (
                self.id,
                values.encode_part(self.type),
                values.encode_part(self.task_id),
                self.task_name,
                self.message,
                DEMAND if self.on_demand else QUEUED,
                self.priority,
                self.delay_us,
                "" if self.expires_us is None else self.expires_us,
                " ".join(self.stamps),
                self.rules,
            )
        except (TypeError, ValueError) as exc:
            said = (self.type, self.task_id, self.stamps)
            raise OptionError(f"type, task id and stamps of a job must be texts in UTF-8, got: {said!r}") from exc

    def checked(self) -> "NewJob":
        """Return the job. Raises OptionError if a field is not accepted: the arrow would refuse the job."""
        name = first_invalid_field(self.arguments)
        if name is not None:
            raise refusal(name, self.arguments)
        return self


def kept_values(job: NewJob) -> dict[str, Any]:
    """Return what *job* has for the fields that its hash has unchanged."""
    return {name: getattr(job, name) for name, field in FIELDS.items() if field.kept}
