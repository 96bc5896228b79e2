"""One recurring call as the server has it: which calls match it, its interval, and the call itself as a text."""

import hashlib
import re
from dataclasses import dataclass

from ..errors import refuse
from . import encoding
from .numbers import is_whole
from .protocol import LEAST_STALE_US, LONGEST_KEY, LONGEST_NUMBER, MOST_SIGNATURE
from .unreadable import is_text

#: From what an interval counts: from the moment at which a call becomes pending, or from the end of a run that
#: succeeded.
SINCE = ("enqueue", "end")

_MERGE_KEY = re.compile(f"[A-Za-z0-9_.~%-]{{1,{LONGEST_KEY}}}")


@dataclass(frozen=True)
class RecurringCall:
    """A call that is made when for *stale_after_us* no call became pending that matches.

    A call matches that is of the same *type*, *task* (its name) and *merge_key*, which is encoded as in the rules of a
    job. *since*: one of `SINCE`. *signature*: the call, in words that only the app reads. Raises OptionError for what
    the server does not take.
    """

    name: str
    task: str
    type: str
    merge_key: str
    stale_after_us: int
    since: str = "enqueue"
    signature: str = ""

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("type", self.type)):
            if not is_name(value):
                raise refuse(
                    f"{what} of a recurring call", f"a text of up to {LONGEST_KEY} characters, percent-encoded", value
                )
        if not isinstance(self.task, str) or not is_text(self.task):
            raise refuse("task of a recurring call", "the name of a task, a text in UTF-8", self.task)
        if not isinstance(self.merge_key, str) or not _MERGE_KEY.fullmatch(self.merge_key):
            accepted = f"1 to {LONGEST_KEY} characters, percent-encoded"
            raise refuse("merge key of a recurring call", accepted, self.merge_key)
        if not is_whole(self.stale_after_us) or not LEAST_STALE_US <= self.stale_after_us < 10 ** (LONGEST_NUMBER - 2):
            raise refuse("stale_after_us of a recurring call", f"µs, {LEAST_STALE_US:,} or more", self.stale_after_us)
        if self.since not in SINCE:
            raise refuse("since of a recurring call", " or ".join(map(repr, SINCE)), self.since)
        if not isinstance(self.signature, str) or not is_text(self.signature):
            raise refuse("signature of a recurring call", "a text in UTF-8", self.signature)
        if len(self.signature.encode()) > MOST_SIGNATURE:
            accepted = f"at most {MOST_SIGNATURE:,} bytes"
            raise refuse("signature of a recurring call", accepted, f"{len(self.signature.encode()):,} bytes")

    @property
    def arguments(self) -> tuple[str | int, ...]:
        """What the arrow `recur` takes of a call."""
        name, type_ = encoding.encode(self.name), encoding.encode(self.type)
        return name, type_, self.merge_key, self.stale_after_us, self.since, self.task, self.signature

    @property
    def digest(self) -> str:
        """A short text that differs where anything but the name does, as the arrow `recur` makes it."""
        _, type_, merge_key, stale_after_us, since, task, signature = self.arguments
        said = f"{type_} {merge_key} {stale_after_us} {since} {task}\n{signature}"
        return hashlib.sha1(said.encode(), usedforsecurity=False).hexdigest()


def is_name(value: object) -> bool:
    """Return whether *value* can name a recurring call."""
    return isinstance(value, str) and value != "" and is_text(value) and len(encoding.encode(value)) <= LONGEST_KEY
