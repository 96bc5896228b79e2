"""The cohorts of a fleet side by side: whoever looks at them, or acts on them, goes through here."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from redis import exceptions as redis_errors

from ..errors import CohortDownError, OutcomeUnknownError, SchemaError, refuse
from .scheduler import Scheduler

T = TypeVar("T")

#: Errors of a server that does not answer; and also of one that cannot be used.
_LOST = (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError)
_NO_ANSWER = (*_LOST, SchemaError)

#: Longest wait, s, for one cohort, whose server may answer each command in time, and so many of them too late.
PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class CohortRow:
    """A row of a report. *cohort*: where it stands; None if the report is about one cohort alone."""

    cohort: str | None = None


@dataclass(frozen=True)
class CohortAnswers(Generic[T]):
    """The *answers* of cohorts, by their names, and why the others are *down*."""

    answers: Mapping[str, T]
    down: Mapping[str, str]

    @property
    def is_split(self) -> bool:
        """Whether the answers are those of more than one cohort."""
        return len(self.answers) + len(self.down) > 1


class Cohorts:
    """Some cohorts, or one. *names*: the first one's errors are raised as they are: all depends on its server.

    *cohort_of*: the cohort of a type. *reach*: returns the scheduler of a cohort; both are asked of more than one
    cohort alone. *rest_s*: time for which a cohort that is down is not asked again. *patience_s*: longest wait for
    another cohort than the first one.
    """

    def __init__(
        self,
        names: Sequence[str],
        cohort_of: Callable[[str], str],
        reach: Callable[[str], Scheduler],
        rest_s: float = 0.0,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.names = list(names)
        self._cohort_of, self._reach = cohort_of, reach
        self._rest_s, self._patience_s = rest_s, patience_s
        self._down: dict[str, tuple[float, str]] = {}
        self._late: dict[str, Future[Any]] = {}

    @classmethod
    def alone(cls, scheduler: Scheduler) -> "Cohorts":
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

    def serving(self, type_: str | None, cohort: str | None = None) -> list[str]:
        """Return the names of the cohorts that can have jobs of *type_*: one, or all for None; or *cohort* alone.

        Raises OptionError for a cohort that the fleet does not have, or that is not the type's.
        """
        if cohort is not None and cohort not in self.names:
            raise refuse("cohort", f"one of {', '.join(self.names)}", cohort)
        its = None if type_ is None else self.cohort_of(type_)
        if its is not None and cohort not in (None, its):
            raise refuse("cohort", f"that of type {type_!r}, {its}", cohort)
        only = cohort or its
        return self.names if only is None else [only]

    def ask(self, name: str, ask: Callable[[Scheduler], T]) -> T:
        """Return what *ask*, which can be repeated, learns of the cohort *name*. Raises CohortDownError."""
        if name == self.names[0]:
            return ask(self._reach(name))
        return self._answer(name, self._begin(name, ask), time.monotonic() + self._patience_s)

    def act(self, name: str, change: Callable[[Scheduler], T]) -> T:
        """Return what *change* says, which would say something else if it were repeated: "there is none", once done.

        Raises CohortDownError if it was not begun, OutcomeUnknownError if the connection was lost meanwhile.
        """
        self.ask(name, _wake)
        try:
            return change(self._reach(name))
        except _LOST as exc:
            raise OutcomeUnknownError(name, str(exc)) from exc

    def each(
        self, ask: Callable[[Scheduler], T], among: Iterable[str] | None = None, *, is_long: bool = False
    ) -> CohortAnswers[T]:
        """Return what *ask* learns of each cohort, or of those *among* them, which are asked side by side.

        One that is down, or slow, holds up no other. *is_long*: the answer may take any time, as long as the server
        goes on.
        """
        until_s = None if is_long else time.monotonic() + self._patience_s
        names = list(self.names if among is None else among)
        answers, down, begun = dict[str, T](), dict[str, str](), dict[str, Future[T]]()
        for name in names:
            if name != self.names[0]:
                try:
                    begun[name] = self._begin(name, ask)
                except CohortDownError as exc:
                    down[name] = exc.why
        for name in names:
            try:
                if name == self.names[0]:
                    answers[name] = ask(self._reach(name))
                elif name in begun:
                    answers[name] = self._answer(name, begun[name], until_s)
            except CohortDownError as exc:
                down[name] = exc.why
        return CohortAnswers(answers, down)

    def act_in_each(self, change: Callable[[Scheduler], T], among: Iterable[str] | None = None) -> CohortAnswers[T]:
        """Make *change* in each cohort, or in those *among* them, as `act` does; return the answers by cohort.

        `Asked.down` has the other cohorts, and says of each whether the change was not begun, or may have been made.
        Raises the errors of `act` if the only cohort is the main one.
        """
        names, main = list(self.names if among is None else among), self.names[0]
        if names == [main]:
            return CohortAnswers({main: self.act(main, change)}, {})
        if main in names:
            self.ask(main, _wake)  # whoever repeats all this when it fails must not have begun elsewhere
        begun = {name: _elsewhere(lambda name=name: self.act(name, change)) for name in names if name != main}  # type: ignore[misc]
        answers, down = dict[str, T](), dict[str, str]()
        for name in names:
            try:
                answers[name] = begun[name].result() if name in begun else self.act(name, change)
            except OutcomeUnknownError as exc:
                down[name] = f"the connection was lost during the change, which was made or not: {exc.why}"
            except CohortDownError as exc:
                down[name] = exc.why
        return CohortAnswers(answers, down)

    def first(self, ask: Callable[[Scheduler], T | None]) -> tuple[str, T] | None:
        """Return the first cohort of which *ask* returns more than None, and what; None if there is none.

        Raises CohortDownError if there is none, and a cohort that does not answer may be it.
        """
        main, *others = self.names
        found = self.ask(main, ask)
        if found is not None:
            return main, found
        asked = self.each(ask, others)
        for name, its in asked.answers.items():
            if its is not None:
                return name, its
        for name, why in asked.down.items():
            raise CohortDownError(name, why)
        return None

    def _begin(self, name: str, ask: Callable[[Scheduler], T]) -> "Future[T]":
        """Have another thread ask a cohort beside the first one. Raises CohortDownError if it is known to be down."""
        until_s, why = self._down.get(name, (0.0, ""))
        late = self._late.get(name)
        if time.monotonic() < until_s or (late is not None and not late.done()):
            raise CohortDownError(name, why)
        return _elsewhere(lambda: self._ask(name, ask))

    def _answer(self, name: str, begun: "Future[T]", until_s: float | None) -> T:
        """Return the answer of a cohort. Raises CohortDownError if there is none until *until_s*."""
        wait_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        if not wait([begun], wait_s).done:
            self._late[name] = begun  # until it ends, nothing else is asked
            self._down[name] = time.monotonic() + self._rest_s, f"no answer within {self._patience_s:g} s"
            raise CohortDownError(name, self._down[name][1])
        return begun.result()

    def _ask(self, name: str, ask: Callable[[Scheduler], T]) -> T:
        try:
            scheduler = self._reach(name)
            try:
                return ask(scheduler)
            except _NO_ANSWER:
                return ask(scheduler)  # the connection was closed as idle, most likely
        except _NO_ANSWER as exc:
            self._down[name] = time.monotonic() + self._rest_s, str(exc)
            raise CohortDownError(name, str(exc)) from exc

    def cohort_of_job(self, id: str) -> str:
        """Return the cohort that knows a job by its id, or its task's; the first one if no cohort does."""
        if not self.is_split:
            return self.names[0]
        found = self.first(lambda scheduler: scheduler.reader.knows(id) or None)
        return self.names[0] if found is None else found[0]


def _wake(scheduler: Scheduler) -> None:
    """Have a connection that was closed as idle opened anew."""
    scheduler.client.ping()


def _elsewhere(call: Callable[[], T]) -> "Future[T]":
    """Have a thread of its own call *call*: one that ends with the process, whatever it waits for."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as exc:  # whoever waits for the answer has it
            future.set_exception(exc)

    threading.Thread(target=copy_context().run, args=(run,), name="cohort", daemon=True).start()
    return future
