"""Look into the messages of the jobs that a list wants otherwise, up to so many bytes for a page."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from redis.exceptions import NoPermissionError

from ..errors import OptionError
from ..rules.marks import is_batch
from ..rules.rows import text_of
from ..server.reader import Reader
from .jobs import Job

#: Largest size of the messages that are read for one page. The first one is read however large it is.
MOST_BYTES = 16_000_000

#: Calls of a run whose messages are read together.
_TOGETHER = 100

#: Whether a message, that of a call of the named task, is meant.
Holds = Callable[[str, bytes], bool]


class Looked(NamedTuple):
    """*holding*: ids of the jobs that are meant. *next*: id of the first job that was not looked at; None: all were.

    *size*: bytes that were read.
    """

    holding: list[str]
    next: str | None
    size: int


def look(reader: Reader, jobs: Sequence[Job], holds: Holds, most_bytes: int) -> Looked:
    """Return which of *jobs* have a message that *holds*; of a run of merged calls, whether all calls have one.

    Stops before *most_bytes* are exceeded, but not before the first job. Raises OptionError without the right to read
    messages.
    """
    try:
        return _look(reader, jobs, holds, most_bytes)
    except NoPermissionError as exc:
        raise OptionError(
            "argument: the broker's user has no right to read messages, which have the arguments; "
            "a worker's user has it, an observer's has not"
        ) from exc


def _look(reader: Reader, jobs: Sequence[Job], holds: Holds, most_bytes: int) -> Looked:
    ids = [job.job_id or "" for job in jobs]
    keys = [reader.key("message", job_id) for job_id in ids]
    sizes = [number or 0 for number in reader.ask([("strlen", key) for key in keys])]
    number, size = 0, 0
    while number < len(jobs) and (number == 0 or size + sizes[number] <= most_bytes):
        size += sizes[number]
        number += 1
    messages = reader.ask([("get", key) for key in keys[:number]])
    holding = []
    for job_id, job, message in zip(ids, jobs, messages, strict=False):
        if is_batch(job_id):
            found, read = _all_calls_hold(reader, job, holds)
            size += read
        else:
            found = holds(job.task or "", message or b"")
        if found:
            holding.append(job_id)
    return Looked(holding, ids[number] if number < len(ids) else None, size)


def _all_calls_hold(reader: Reader, job: Job, holds: Holds) -> tuple[bool, int]:
    """Return whether the messages of all calls of a run hold, and the bytes that were read to find out."""
    size, number = 0, 0
    for name in ("callers", "told_callers"):
        key, first = reader.key(name, job.job_id or ""), 0
        while calls := reader.ask_one("zrange", key, first, first + _TOGETHER - 1):
            found = reader.ask([("get", reader.key("message", text_of(call))) for call in calls])
            messages = [message for message in found if message]  # a call that has ended has none
            size += sum(map(len, messages))
            if not all(holds(job.task or "", message) for message in messages):
                return False, size
            number += len(messages)
            first += len(calls)
    return number > 0, size
