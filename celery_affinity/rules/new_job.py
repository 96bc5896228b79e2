"""A job to publish: a value for each field of a job (`job_fields`), checked before it goes to the server.

Made from a call (`client.envelope.as_job`) or from stock Celery's list (`dispatcher.ingest`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from ..errors import OptionError, refuse
from . import encoding, known_marks, marks
from .bounds import Bound
from .job_fields import FIELDS, LEAST_FIELDS
from .lanes import DEMAND, QUEUED

_NAMES = tuple(FIELDS)
_ID, _RULES = _NAMES.index("id"), _NAMES.index("rules")

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


def bad(arguments: Sequence[object]) -> str | None:
    """Return the name of a field in *arguments*, which are in the order of `FIELDS`, that is not accepted, or None."""
    for name, place, matches in _CHECKS_OF_TEXTS if _GOOD_LINES("\n".join(map(str, _LINES(arguments)))) else _CHECKS:
        if not matches(str(arguments[place])):
            return name
    return None if _is_marked_so(str(arguments[_ID]), str(arguments[_RULES])) else "rules"


def _is_marked_so(job_id: str, rules: str) -> bool:
    """Return whether the marks of *job_id* are those of a job with *rules*."""
    if not rules:
        return not job_id.endswith(known_marks.ALL)
    return marks.at_end(job_id) == marks.marks_for(rules)


def in_short(arguments: Sequence[str | bytes | int]) -> Sequence[str | bytes | int]:
    """Return the *arguments* of one job without the last ones that have their defaults: of most, all that may have."""
    length = len(arguments)
    while length > LEAST_FIELDS and arguments[length - 1] == _DEFAULTS[length - 1 - LEAST_FIELDS]:
        length -= 1
    return arguments[:length]


def refused(name: str, arguments: Sequence[object]) -> OptionError:
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
                encoding.encode(self.type),
                encoding.encode(self.task_id),
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
        name = bad(self.arguments)
        if name is not None:
            raise refused(name, self.arguments)
        return self


def kept(job: NewJob) -> dict[str, Any]:
    """Return what *job* has for the fields that its hash has unchanged."""
    return {name: getattr(job, name) for name, field in FIELDS.items() if field.kept}
