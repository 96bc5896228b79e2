"""The cohorts of a fleet side by side: whoever looks at them, or acts on them, goes through here."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from redis import exceptions as redis_errors

from ..errors import CohortDownError, SchemaError
from .scheduler import Scheduler

T = TypeVar("T")

#: Errors of a cohort whose server does not answer, or cannot be used.
_NO_ANSWER = (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError, SchemaError)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a report. *cohort*: where it stands; None if the report is about one cohort alone."""

    cohort: str | None = None


@dataclass(frozen=True)
class Asked(Generic[T]):
    """The *answers* of cohorts, by their names, and why the others are *down*."""

    answers: Mapping[str, T]
    down: Mapping[str, str]

    @property
    def is_split(self) -> bool:
        """Whether the answers are those of more than one cohort."""
        return len(self.answers) + len(self.down) > 1


class WholeFleet:
    """Some cohorts, or one. *names*: the first one's errors are raised as they are: all depends on its server.

    *cohort_of*: the cohort of a type. *reach*: returns the scheduler of a cohort; both are asked of more than one
    cohort alone. *rest_s*: time for which a cohort that is down is not asked again.
    """

    def __init__(
        self,
        names: Sequence[str],
        cohort_of: Callable[[str], str],
        reach: Callable[[str], Scheduler],
        rest_s: float = 0.0,
    ) -> None:
        self.names = list(names)
        self._cohort_of, self._reach, self._rest_s = cohort_of, reach, rest_s
        self._down: dict[str, tuple[float, str]] = {}

    @classmethod
    def alone(cls, scheduler: Scheduler) -> "WholeFleet":
        """Return a fleet of one cohort."""
        name = scheduler.keys.cohort
        return cls([name], lambda _: name, lambda _: scheduler)

    @property
    def is_split(self) -> bool:
        return len(self.names) > 1

    @property
    def main(self) -> Scheduler:
        """The scheduler of the first cohort."""
        return self._reach(self.names[0])

    def cohort_of(self, type_: str) -> str:
        """Return the cohort of a type; that which the fleet has if it is one. Raises SettingError."""
        return self._cohort_of(type_) if self.is_split else self.names[0]

    def serving(self, type_: str | None) -> list[str]:
        """Return the names of the cohorts that can have jobs of *type_*: one, or all for None."""
        return self.names if type_ is None else [self.cohort_of(type_)]

    def ask(self, name: str, ask: Callable[[Scheduler], T]) -> T:
        """Return what *ask*, which can be repeated, learns of the cohort *name*. Raises CohortDownError."""
        if name == self.names[0]:
            return ask(self._reach(name))
        until_s, why = self._down.get(name, (0.0, ""))
        if time.monotonic() < until_s:
            raise CohortDownError(name, why)
        try:
            scheduler = self._reach(name)
            try:
                return ask(scheduler)
            except _NO_ANSWER:
                return ask(scheduler)  # the connection was closed as idle, most likely
        except _NO_ANSWER as exc:
            self._down[name] = time.monotonic() + self._rest_s, str(exc)
            raise CohortDownError(name, str(exc)) from exc

    def each(self, ask: Callable[[Scheduler], T], among: Iterable[str] | None = None) -> Asked[T]:
        """Return what *ask* learns of each cohort, or of those *among* them. One that is down holds up no other."""
        answers, down = dict[str, T](), dict[str, str]()
        for name in self.names if among is None else among:
            try:
                answers[name] = self.ask(name, ask)
            except CohortDownError as exc:
                down[name] = exc.why
        return Asked(answers, down)

    def first(self, ask: Callable[[Scheduler], T | None]) -> tuple[str, T] | None:
        """Return the first cohort of which *ask* returns more than None, and what; None if there is none.

        Raises CohortDownError if there is none, and a cohort that does not answer may be it.
        """
        down: CohortDownError | None = None
        for name in self.names:
            try:
                found = self.ask(name, ask)
            except CohortDownError as exc:
                down = exc
            else:
                if found is not None:
                    return name, found
        if down is not None:
            raise down
        return None

    def has_job(self, id: str) -> str:
        """Return the cohort that knows a job by its id, or its task's; the first one if no cohort does."""
        if not self.is_split:
            return self.names[0]
        found = self.first(lambda scheduler: scheduler.reader.knows(id) or None)
        return self.names[0] if found is None else found[0]
