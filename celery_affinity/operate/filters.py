"""The filters that lists of jobs, and what acts on all jobs that match, have in common: as somebody gives them."""

from dataclasses import dataclass
from typing import Any

from celery import Celery

from ..client.bodies import decoded
from ..client.envelope import read
from ..client.stated_rules import arguments_in
from ..clock import SECOND_US
from ..errors import OptionError, refuse
from ..observe.job_filter import Filter
from ..rules.keyed.template import Arguments, OfCall, TemplateField, parsed, taken_by
from ..rules.numbers import SECONDS_OR_0
from ..rules.patterns import matches
from ..rules.unreadable import is_text
from ..rules.untrusted import is_too_deep
from ..server.reader import Reader

_OF_CALL = OfCall()


@dataclass(frozen=True)
class Filters:
    """Filters of jobs: a job must match all that are given.

    *state*, *type*, *task*, *stamp*, *key*: as in `Filter`. *older_than_s*, *newer_than_s*: only jobs that were
    enqueued at least, or at most, so many seconds ago. *argument*: "name=value", the name as in the template of a key
    (``customer``, or ``args[0]`` by position), the value as ``str`` writes it; ``*`` in it stands for anything.
    """

    state: str | None = None
    type: str | None = None
    task: str | None = None
    stamp: str | None = None
    key: str | None = None
    older_than_s: float | None = None
    newer_than_s: float | None = None
    argument: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == Filters()

    def of(self, app: Celery, reader: Reader) -> Filter:
        """Return the filter of lists, as of now. *app*: has the tasks, and so the names of arguments.

        Raises OptionError.
        """
        older_s, newer_s = _age("older_than", self.older_than_s), _age("newer_than", self.newer_than_s)
        if older_s is not None and newer_s is not None and newer_s <= older_s:
            raise refuse("newer_than", f"a longer time than older_than ({older_s:g} s)", newer_s)
        now_s = 0.0 if older_s is newer_s is None else reader.now_us() / SECOND_US
        return Filter(
            state=self.state,
            type=self.type,
            task=self.task,
            stamp=self.stamp,
            key=self.key,
            before_s=None if older_s is None else now_s - older_s,
            since_s=None if newer_s is None else now_s - newer_s,
            holds=None if self.argument is None else Argument(app, self.argument),
        )


def _age(name: str, given_s: float | None) -> float | None:
    accepted = None if given_s is None else SECONDS_OR_0(given_s)
    if accepted is not None:
        raise refuse(name, accepted, given_s)
    return given_s


class Argument:
    """Whether a message has an argument: *said* is its name and value. Raises OptionError for what is neither.

    A message whose arguments cannot be read, because they are not JSON or are very large, has none.
    """

    def __init__(self, app: Celery, said: str) -> None:
        name, equals, value = said.partition("=")
        if not (equals and name and is_text(said)):
            raise refuse("argument", "a name and a value, name=value, such as customer=17 or args[0]=17", said)
        self._field = _field(name)
        self._value = value
        self._app = app

    def __call__(self, task_name: str, message: bytes) -> bool:
        """Return whether *message*, a call of the task, has the argument with the value."""
        try:
            args, kwargs = arguments_in(task_name, decoded(read(message)))
            value = self._arguments(task_name).value(self._field, args, kwargs)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False
        return not is_too_deep(value) and matches(self._value, str(value))

    def _arguments(self, task_name: str) -> Arguments:
        task: Any = self._app.tasks.get(task_name)
        return _OF_CALL if task is None else taken_by(task.run)


def _field(name: str) -> TemplateField:
    try:
        (field,) = parsed("argument", "{" + name + "}")
    except ValueError:
        field = name
    if not isinstance(field, TemplateField) or field.is_task:
        raise OptionError(f"argument must begin with the name of an argument or args[0], then =, got: {name[:100]!r}")
    return field
