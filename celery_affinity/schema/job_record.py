"""The table of a job's fields: accepted values, defaults, and location in the job hash.

Fields become parts of key names, token lists and sums that every worker reads, so one invalid field would block them
all. Publishers therefore check each job (`NewJob`), and so do the server functions, before they write. Lua code for all
fields is generated from the table; the functions' check is ``lua/jobs/validate.lua``, which a test compares with the
patterns here.

Also here: the suffix of a job id, which functions and workers read instead of the job; see `MARKS`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from ..errors import OptionError, refuse
from . import rules_codec, values
from .bounds import Bound
from .constants import MAX_DUE_DIGITS, MAX_ID_LENGTH, MAX_NUMBER_LENGTH, MAX_PRIORITY, MAX_STAMP_BYTES, MAX_STAMPS
from .rules_codec import BATCH, FORMS, MANY_KEYED, MERGES, OF_KEYS
from .values import DEMAND, QUEUED


class JobField(NamedTuple):
    """One field of a job, as an argument of the server functions."""

    #: The accepted values, as text.
    accepted: str
    #: Pattern of the whole value; "" if every value is accepted.
    pattern: str
    #: Default for messages without the field; None if the field is required.
    otherwise: str | int | None = None
    #: Field of the job hash with the unchanged value; "" if there is none: see the comments in `FIELDS`.
    kept: str = ""


_ENCODED = "[A-Za-z0-9_.~%-]"
TEXT = f"{_ENCODED}*"
_STAMP = "[A-Za-z0-9_.~%:-]+"
_NUMBER = f"-?[0-9]{{1,{MAX_NUMBER_LENGTH - 1}}}|[0-9]{{{MAX_NUMBER_LENGTH}}}"
_WITHIN, _DEADLINE, _SIZE = (f"{letter}[0-9]{{1,{MAX_DUE_DIGITS}}}" for letter in ("w", "d-?", "s"))

#: Name -> field, in the order of the functions' arguments. Rarely used fields are last (`job_words`).
FIELDS: dict[str, JobField] = {
    "id": JobField(  # from the transport, once for each queue of a call; stored in key names
        f"1 to {MAX_ID_LENGTH} printable ASCII characters without a blank, not as the id of a batch ends ({BATCH!r})",
        rf"[!-~]{{1,{MAX_ID_LENGTH}}}(?<!\{BATCH})(?<!\{BATCH}[{''.join(OF_KEYS)}])",
    ),
    # The affinity of the task, or the queue.
    "type": JobField("a name that is not empty, percent-encoded", f"{_ENCODED}+", kept="type"),
    "task_id": JobField("a text, percent-encoded", TEXT, "", kept="task"),
    "task_name": JobField("a text in UTF-8", r"[^\ud800-\udfff]*", "", kept="name"),
    "message": JobField("any bytes", ""),  # from kombu; stored in a separate key
    "mode": JobField("'queued' or 'demand'", "queued|demand", "queued"),  # from on_demand; in the lane's name
    # Of the call, or of the task; in the lane's name. 10 is the highest by default, the app can reverse the order.
    "priority": JobField(f"a whole number from 0 to {MAX_PRIORITY}", f"[0-9]|{MAX_PRIORITY}", 0),
    # From countdown or eta, then start_within, deadline and size. "enqueued" has the time of the eta, and "due" the due
    # time (`lua/jobs/due_times.lua`), so neither depends on the publisher's clock.
    "times": JobField(
        f"a whole number of microseconds, of up to {MAX_NUMBER_LENGTH} characters, then nothing or words in this "
        "order: 'w' and the time in µs within which the job should start, 'd' and the time in µs until its deadline, "
        f"'s' and its size in millionths, each with at most {MAX_DUE_DIGITS} digits",
        f"(?:{_NUMBER})(?: {_WITHIN})?(?: {_DEADLINE})?(?: {_SIZE})?",
        0,
    ),
    "expires_us": JobField(  # from expires; "expires" has the expiry time, if there is one
        f"nothing, or a whole number of microseconds, of up to {MAX_NUMBER_LENGTH} characters",
        f"|{_NUMBER}",
        "",
    ),
    "stamps": JobField(  # "stamps" has them, if there are any
        f"names and values ('name:value'), percent-encoded: {MAX_STAMPS} at most, {MAX_STAMP_BYTES:,} bytes",
        rf"(?=[^\n]{{0,{MAX_STAMP_BYTES}}}(?:\n|\Z)) *(?:{_STAMP}(?: +{_STAMP}){{0,{MAX_STAMPS - 1}}} *)?",
        "",
    ),
    # Merge, locality, exclusive, rate, tenant and preemptible of the task, or of the call. "rules" has them, if there
    # are any; the id suffix names the kinds of rules.
    "rules": JobField(
        "nothing, or rules of the kinds that the end of the id names, at most one of each kind, in this order (a rate "
        f"can also follow the key): {', '.join(repr(form.template) for form in FORMS.values())}",
        rules_codec.PATTERN,
        "",
    ),
}

#: Number of required fields. A call with a single job can omit all others if they have their defaults.
LEAST_FIELDS = list(FIELDS).index("message") + 1


_SUFFIX = re.compile(rules_codec.SUFFIX + r"\Z")


def suffix_of(job_id: str) -> str:
    """Return the suffix of *job_id*, or ""."""
    match = _SUFFIX.search(job_id)
    return match[0] if match else ""


def has_key(job_id: str) -> bool:
    return job_id.endswith(OF_KEYS)


def has_many_keys(job_id: str) -> bool:
    return job_id.endswith(MANY_KEYED)


def key_suffix(job_id: str) -> str:
    """Return the part of the suffix of *job_id* that names its keys, or ""."""
    return job_id[-1:] if has_key(job_id) else ""


def is_merged(job_id: str) -> bool:
    """Return True if *job_id* belongs to a single call that merges with other waiting calls."""
    return job_id.removesuffix(key_suffix(job_id)).endswith(MERGES)


def is_batch(job_id: str) -> bool:
    return job_id.removesuffix(key_suffix(job_id)).endswith(BATCH)


def with_suffix(job_id: str, rules: str) -> str:
    """Return *job_id* with the id suffix of a job with these *rules* ("" for a job without rules)."""
    return job_id + rules_codec.decode_rules(rules).suffix


_NAMES = tuple(FIELDS)
_ID, _VALID_RULES = _NAMES.index("id"), _NAMES.index("rules")
#: Default values of the optional fields.
_DEFAULTS = tuple(field.otherwise for field in FIELDS.values())[LEAST_FIELDS:]

#: Name, index and check of each checked field. Fields that can contain a line break are last.
_CHECKS = sorted(
    (
        (name, place, re.compile(field.pattern).fullmatch)
        for place, (name, field) in enumerate(FIELDS.items())
        if field.pattern
    ),
    key=lambda check: check[2]("\n") is not None,
)
_MULTILINE_CHECKS = [check for check in _CHECKS if check[2]("\n")]
#: The other fields are matched as lines of one string: one match for all takes a third of the time of separate matches.
_LINE_CHECKS = [check for check in _CHECKS if check not in _MULTILINE_CHECKS]
_LINES = itemgetter(*(place for _, place, _ in _LINE_CHECKS))
_GOOD_LINES = re.compile("\n".join(f"(?:{FIELDS[name].pattern})" for name, _, _ in _LINE_CHECKS)).fullmatch


def first_invalid_field(arguments: Sequence[object]) -> str | None:
    """Return the name of an invalid field among *arguments*, which are in the order of `FIELDS`, or None."""
    for name, place, matches in _MULTILINE_CHECKS if _GOOD_LINES("\n".join(map(str, _LINES(arguments)))) else _CHECKS:
        if not matches(str(arguments[place])):
            return name
    suffix = rules_codec.decode_rules(str(arguments[_VALID_RULES])).suffix
    return None if suffix_of(str(arguments[_ID])) == suffix else "rules"


def job_words(arguments: Sequence[str | bytes | int]) -> Sequence[str | bytes | int]:
    """Return the *arguments* of one job without trailing default values, which most jobs have."""
    length = len(arguments)
    while length > LEAST_FIELDS and arguments[length - 1] == _DEFAULTS[length - 1 - LEAST_FIELDS]:
        length -= 1
    return arguments[:length]


def refusal(name: str, arguments: Sequence[object]) -> OptionError:
    """Return the error for the invalid field *name*."""
    return refuse(f"{name} of a job", FIELDS[name].accepted, arguments[_NAMES.index(name)])


@dataclass(slots=True)  # not frozen: creating a frozen instance, one per publish, takes three times as long
class NewJob:
    """A job to publish, created from a call (`message.encode_job`) or from a stock Celery list (`dispatcher.ingest`).

    Raises OptionError for a value that is not a string in UTF-8.
    """

    id: str
    type: str
    message: bytes | str
    on_demand: bool = False
    priority: int = 0
    #: Time until the job is due.
    delay_us: int = 0
    task_id: str = ""
    task_name: str = ""
    #: Time until the job ends if it still waits.
    expires_us: int | None = None
    #: Tokens by which the job can be revoked, in the format of `message.encode_stamp`.
    stamps: Sequence[str] = ()
    #: How the job merges, and its keys, in the format of `rules_codec`.
    rules: str = ""
    #: When the job is due, and its size: the words of the field "times".
    due: str = ""
    #: False if only the message and its list are available.
    readable: bool = True
    #: Maximum number of waiting jobs of the type. None: unlimited, or the job is part of work accepted before.
    bound: Bound | None = None
    #: Arguments of the server functions that create a job, in the order of `FIELDS`; "mode" is `on_demand`.
    arguments: tuple[str | bytes | int, ...] = field(init=False, repr=False)

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
                f"{self.delay_us} {self.due}" if self.due else self.delay_us,
                "" if self.expires_us is None else self.expires_us,
                " ".join(self.stamps),
                self.rules,
            )
        except (TypeError, ValueError) as exc:
            values_of_job = (self.type, self.task_id, self.stamps)
            raise OptionError(
                f"type, task id and stamps of a job must be texts in UTF-8, got: {values_of_job!r}"
            ) from exc

    def checked(self) -> "NewJob":
        """Return the job. Raises OptionError for an invalid field, because the server function would refuse the job."""
        name = first_invalid_field(self.arguments)
        if name is not None:
            raise refusal(name, self.arguments)
        return self
