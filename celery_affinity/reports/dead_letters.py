"""Read the dead letters: jobs that will not run again, and why. `Scheduler` replays and drops them."""

import re
from ast import literal_eval
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from redis.exceptions import NoPermissionError

from ..clock import SECOND_US
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Reader
from ..schema import values
from ..schema.constants import REASONS
from ..schema.job_record import is_batch
from ..schema.untrusted import describe_shape, is_number, loads
from ..schema.values import MAX_COUNT, decode_number, decode_text
from .job_rows import BatchCalls, calls_of, read_jobs
from .render import Table, time_text
from .report import Answer, Param, Source, report

#: Number of dead letters per round trip.
_PAGE = 500

#: Message headers that explain the call. The arguments are in the readable form that the sender wrote.
_ARGUMENT_HEADERS = ("argsrepr", "kwargsrepr")
_SHOWN_HEADERS = (*_ARGUMENT_HEADERS, "retries", "eta", "expires", "root_id", "parent_id", "origin")


@dataclass(frozen=True)
class DeadLetter(CohortRow):
    """A job that will not run again.

    *reason*: one of `dead_reasons.REASONS`. *ended_s*: Unix time. *replayable*: False if the message is missing. *why*:
    the exception's type and the first 200 characters of its message, if a worker sent them. *calls*: number of calls in
    the run. A replay runs all of them again.
    """

    job_id: str
    task_id: str
    task: str
    type: str
    reason: str
    ended_s: float
    deliveries: int
    replayable: bool
    why: str | None = None
    calls: int = 1


@dataclass(frozen=True)
class LetterDetails:
    """A dead letter with the *headers* that explain the call. For merged calls, this is the oldest call.

    *enqueued_s*: Unix time. *message_bytes*: length of the call's message, 0 if it is missing.
    """

    letter: DeadLetter
    enqueued_s: float
    message_bytes: int
    headers: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class LetterFilter:
    """A filter that admits dead letters which match all given fields. *task*: a name or a pattern.

    *ids*: ids of jobs or tasks. The id of a merged call selects its run.
    """

    ids: Sequence[str] = ()
    reason: str | None = None
    type: str | None = None
    task: str | None = None
    older_than_s: float | None = None

    @property
    def is_empty(self) -> bool:
        return not self.ids and not any((self.reason, self.type, self.task, self.older_than_s))

    def admits(self, letter: DeadLetter, now_s: float) -> bool:
        """Return True if *letter* matches all fields except the ids."""
        return (
            self.reason in (None, letter.reason)
            and self.type in (None, letter.type)
            and (self.task is None or values.matches(self.task, letter.task))
            and (self.older_than_s is None or now_s - letter.ended_s >= self.older_than_s)
        )


def find_letters(
    reader: Reader, which: LetterFilter, limit: int | None = None, *, failed: bool = False
) -> list[DeadLetter]:
    """Return at most *limit* letters that *which* admits, the newest first.

    *failed*: return the failed jobs that ``affinity_keep`` keeps instead, in the form of letters.
    """
    letters, now_s = [], reader.now_us() / SECOND_US
    for letter in _with_ids(reader, which.ids, failed) if which.ids else _all(reader, failed):
        if which.admits(letter, now_s):
            letters.append(letter)
            if len(letters) == limit:
                break
    return letters


def letter_not_found(reader: Reader, which: LetterFilter) -> list[str]:
    """Return the ids of *which* without a letter that *which* admits."""
    return [id_ for id_ in which.ids if not find_letters(reader, replace(which, ids=(id_,)), 1)]


def show_letter(reader: Reader, letter: DeadLetter, hidden: str | None = None) -> LetterDetails:
    """Return *letter* with details from the job hash and the message. *hidden*: text shown instead of the arguments."""
    (job,) = read_jobs(reader, [letter.job_id])
    (call,) = _calls(reader, [letter.job_id])
    message_bytes = decode_number(reader.ask_one("strlen", reader.key("message", call.first)))
    headers = _headers(reader, call.first)
    if hidden is not None:
        headers = {name: value for name, value in headers.items() if name not in _ARGUMENT_HEADERS}
        headers["arguments"] = hidden
    return LetterDetails(letter, job.enqueued_us / SECOND_US, message_bytes, headers)


def shown_letter(reader: Reader, id: str, hidden: str | None = None) -> list[LetterDetails]:
    """Return the details of the letters with an id of a job or a task, like `show_letter`."""
    return [show_letter(reader, letter, hidden) for letter in find_letters(reader, LetterFilter((id,)))]


def letter_headers(reader: Reader, job_id: str) -> dict[str, object]:
    """Return the headers that explain a job's call, or its first merged call. Empty if the message is missing."""
    (call,) = _calls(reader, [job_id])
    return _headers(reader, call.first)


def _headers(reader: Reader, job_id: str) -> dict[str, object]:
    try:
        message = reader.ask_one("get", reader.key("message", job_id)) or b""
    except NoPermissionError:
        return {"arguments": _NO_RIGHT}
    return _headers_in(message)


_NO_RIGHT = "hidden: this Redis user has no right to read messages"


def _headers_in(message: bytes) -> dict[str, object]:
    try:
        headers = loads(message)["headers"]
        return {
            name: value if isinstance(value, str) or is_number(value) else describe_shape(value)
            for name in _SHOWN_HEADERS
            if (value := headers.get(name)) is not None
        }
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}  # the message is missing or unreadable, which can be why the job is a dead letter


#: Maximum length of a message whose arguments a list shows, in bytes.
_MAX_LISTED_BYTES = 65_536
#: Maximum number of arguments per job, and of characters per value, in a list.
_MAX_ARGUMENTS, _MAX_VALUE_LENGTH = 20, 200
#: Maximum length of a parsed readable form in characters. Celery writes at most half as many.
_MAX_LITERAL_LENGTH = 2_048
_INVALID_ESCAPE = re.compile(r"""\\[^\\'"abfnrtvxuUN0-7\n]""")


def listed_arguments(reader: Reader, ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the arguments of jobs by job id and by name, in the sender's readable form. Two or three round trips.

    An argument by position has a name such as "args[0]". A form that is not a Python literal, such as a form that was
    cut off, is shown as a whole. A batch has the arguments of its first call.
    """
    calls = dict(zip(ids, _calls(reader, ids), strict=True))
    keys = {id_: reader.key("message", call.first) for id_, call in calls.items()}
    try:
        lengths = reader.ask([("strlen", key) for key in keys.values()]) if keys else []
        read = [id_ for id_, length in zip(keys, lengths, strict=True) if 0 < length <= _MAX_LISTED_BYTES]
        messages = reader.ask([("get", keys[id_]) for id_ in read]) if read else []
    except NoPermissionError:
        return {id_: {"arguments": _NO_RIGHT} for id_ in ids}
    long = {
        id_: {"arguments": f"a message of {length:,} bytes"}
        for id_, length in zip(keys, lengths, strict=True)
        if length > _MAX_LISTED_BYTES
    }
    return long | {id_: _arguments_in(message or b"") for id_, message in zip(read, messages, strict=True)}


def _arguments_in(message: bytes) -> dict[str, str]:
    headers = _headers_in(message)
    arguments: dict[str, str] = {}
    for header in _ARGUMENT_HEADERS:
        text = headers.get(header)
        if not isinstance(text, str) or text in ("()", "[]", "{}"):
            continue
        arguments |= _by_name(text) or {header.removesuffix("repr"): _value_text(text)}
    return arguments


def _by_name(text: str) -> dict[str, str]:
    """Return the arguments in a readable form by name, or {} if it is not a literal."""
    if len(text) > _MAX_LITERAL_LENGTH or _INVALID_ESCAPE.search(text):  # the latter would make a warning
        return {}
    try:
        value = literal_eval(text)
        if isinstance(value, list | tuple):
            value = {f"args[{nth}]": part for nth, part in enumerate(value)}
        named = list(value.items())[:_MAX_ARGUMENTS] if isinstance(value, dict) else []
        return {_value_text(name): _value_text(part) for name, part in named}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return {}


def _value_text(value: object) -> str:
    return str(value)[:_MAX_VALUE_LENGTH].encode(errors="replace").decode()


def _all(reader: Reader, failed: bool) -> Iterator[DeadLetter]:
    first = 0
    while ids := reader.ask_one("zrange", reader.key("ended" if failed else "dead"), first, first + _PAGE - 1, True):
        yield from _read(reader, [decode_text(job_id) for job_id in ids], failed)
        first += _PAGE


def _with_ids(reader: Reader, ids: Sequence[str], failed: bool) -> list[DeadLetter]:
    of_tasks = [job_id for jobs in reader.jobs_of(ids) for job_id in jobs]
    jobs = list(dict.fromkeys([*ids, *of_tasks]))
    return _read(reader, list(dict.fromkeys(row.into or row.job_id for row in read_jobs(reader, jobs))), failed)


def _read(reader: Reader, ids: Sequence[str], failed: bool) -> list[DeadLetter]:
    """Return the dead letters, or the *failed* jobs, among the jobs *ids*."""
    dead = [job for job in read_jobs(reader, ids) if job.state == ("failed" if failed else "dead")]
    calls = _calls(reader, [job.job_id for job in dead])
    exists = reader.ask([("exists", reader.key("message", batch.first)) for batch in calls])
    return [
        DeadLetter(
            job_id=job.job_id,
            task_id=job.task_id,
            task=job.task,
            type=job.type,
            reason="failed" if failed else job.reason or "",
            ended_s=job.ended_us / SECOND_US,
            deliveries=job.deliveries,
            replayable=bool(replayable),
            why=job.why,
            calls=batch.number,
        )
        for job, batch, replayable in zip(dead, calls, exists, strict=True)
    ]


def _calls(reader: Reader, ids: Sequence[str]) -> list[BatchCalls]:
    """Return the calls of each of the jobs *ids*. A job that is not a batch has only one call: itself."""
    merged = calls_of(reader, [job_id for job_id in ids if is_batch(job_id)])
    return [merged.get(job_id) or BatchCalls(job_id, 1) for job_id in ids]


#: Maximum length of an error in a table, in characters.
_MAX_WHY = 80


def _why(letter: DeadLetter) -> str:
    why = letter.why or ""
    return f"{why[:_MAX_WHY]}..." if len(why) > _MAX_WHY else why


LETTERS = Table[DeadLetter](
    {
        "ended": lambda letter: time_text(letter.ended_s),
        "reason": "reason",
        "calls": "calls",
        "type": "type",
        "task": "task",
        "task id": "task_id",
        "why": _why,
    },
    empty="there are no dead letters",
    optional={"calls": lambda letter: letter.calls > 1},
)

Reason = Annotated[str | None, Param("Only letters with this reason.", choices=tuple(REASONS))]
Type = Annotated[str | None, Param("Only jobs of this type.")]
Task = Annotated[str | None, Param("Only jobs of tasks with this name; * stands for anything.")]
OlderThan = Annotated[float | None, Param("Only jobs that ended at least this long ago: 90s, 30m, 2h, 1d.")]
Limit = Annotated[int, Param("Maximum number to show.", min_value=1, max_value=MAX_COUNT, max_over_http=1000)]


@report("dead list", "/api/dead", "Dead letters, the newest first", text=LETTERS.text)
def list_letters(
    source: Source,
    reason: Reason = None,
    type: Type = None,
    task: Task = None,
    older_than_s: OlderThan = None,
    limit: Limit = 100,
) -> Answer[list[DeadLetter]]:
    """List dead letters, the newest first."""
    which = LetterFilter((), reason, type, task, older_than_s)
    answer = source.rows(lambda scheduler: find_letters(scheduler.reader, which, limit))
    letters = sorted(answer.report, key=lambda letter: letter.ended_s, reverse=True)[:limit]
    return Answer(letters, answer.down, if_empty="" if which.is_empty else "no dead letter matches")
