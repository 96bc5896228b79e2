"""Access to all cohorts of a fleet, in parallel, for reports and changes."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..broker.failover import LOST
from ..errors import CohortDownError, OutcomeUnknownError, SchemaError, refuse
from .scheduler import Scheduler

T = TypeVar("T")
#: Errors of a server that does not answer, or that is unusable.
_UNAVAILABLE = (*LOST, SchemaError)
#: Maximum wait in seconds for one cohort. A slow server can answer each command in time, but all of them too late.
PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class CohortRow:
    """A row of a report. *cohort*: the cohort of the row; None if the report covers only one cohort."""

    cohort: str | None = None


@dataclass(frozen=True)
class CohortAnswers(Generic[T]):
    """The *answers* of cohorts by name, and the reasons why others are *down*."""

    answers: Mapping[str, T]
    down: Mapping[str, str]

    @property
    def is_split(self) -> bool:
        """True if the answers come from more than one cohort."""
        return len(self.answers) + len(self.down) > 1


class Cohorts:
    """One or more cohorts. *names*: the errors of the first cohort are raised unchanged: all depends on its server.

    *cohort_of* returns the cohort of a type, and *reach* the scheduler of a cohort.
    *rest_s*: seconds without a query after a cohort was down.
    *patience_s*: maximum wait in seconds for each cohort except the first.
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
        self._late_answers: dict[str, Future[Any]] = {}

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
        """Return the cohort of a type. Raises SettingError."""
        return self._cohort_of(type_) if self.is_split else self.names[0]

    def serving(self, type_: str | None, cohort: str | None = None) -> list[str]:
        """Return the names of the cohorts that can have jobs of *type_* (None: any type), or only *cohort*.

        Raises OptionError if the fleet has no such cohort, or if it is not the type's.
        """
        if cohort is not None and cohort not in self.names:
            raise refuse("cohort", f"one of {', '.join(self.names)}", cohort)
        cohort_of_type = None if type_ is None else self.cohort_of(type_)
        if cohort_of_type is not None and cohort not in (None, cohort_of_type):
            raise refuse("cohort", f"that of type {type_!r}, {cohort_of_type}", cohort)
        chosen = cohort or cohort_of_type
        return self.names if chosen is None else [chosen]

    def ask(self, name: str, ask: Callable[[Scheduler], T]) -> T:
        """Return the answer of the cohort *name* to the repeatable query *ask*. Raises CohortDownError."""
        if name == self.names[0]:
            return ask(self._reach(name))
        return self._await_answer(name, self._begin(name, ask), time.monotonic() + self._patience_s)

    def act(self, name: str, change: Callable[[Scheduler], T]) -> T:
        """Return the answer to *change*, which is not repeatable: a second time it would find nothing to change.

        Raises CohortDownError if it was not begun, OutcomeUnknownError if the connection was lost during it.
        """
        self.ask(name, _reconnect)
        try:
            return change(self._reach(name))
        except LOST as exc:
            raise OutcomeUnknownError(name, str(exc)) from exc

    def each(
        self, ask: Callable[[Scheduler], T], among: Iterable[str] | None = None, *, is_long: bool = False
    ) -> CohortAnswers[T]:
        """Return the answers of all cohorts, or of those *among* them, to *ask*, queried in parallel.

        A slow or unavailable cohort blocks no other. *is_long*: no time limit as long as the server continues.
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
                    answers[name] = self._await_answer(name, begun[name], until_s)
            except CohortDownError as exc:
                down[name] = exc.why
        return CohortAnswers(answers, down)

    def act_in_each(self, change: Callable[[Scheduler], T], among: Iterable[str] | None = None) -> CohortAnswers[T]:
        """Make *change* in each cohort, or in those *among* them, like `act`; return the answers by cohort.

        `CohortAnswers.down` tells whether a change in another cohort was not begun, or may have been made. Raises the
        errors of `act` if the only cohort is the main cohort.
        """
        names, main = list(self.names if among is None else among), self.names[0]
        if names == [main]:
            return CohortAnswers({main: self.act(main, change)}, {})
        if main in names:
            self.ask(main, _reconnect)  # if this fails, callers retry: nothing may have begun in other cohorts
        begun = {name: _run_in_thread(lambda name=name: self.act(name, change)) for name in names if name != main}  # type: ignore[misc]
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
        """Return the first cohort with an answer to *ask* other than None, and the answer; None if there is none.

        Raises CohortDownError if there is none and a cohort is down, which could have the answer.
        """
        main, *others = self.names
        answer = self.ask(main, ask)
        if answer is not None:
            return main, answer
        others_answers = self.each(ask, others)
        for name, answer in others_answers.answers.items():
            if answer is not None:
                return name, answer
        for name, why in others_answers.down.items():
            raise CohortDownError(name, why)
        return None

    def _begin(self, name: str, ask: Callable[[Scheduler], T]) -> "Future[T]":
        """Query a cohort other than the first in a thread. Raises CohortDownError if it was down just before."""
        until_s, why = self._down.get(name, (0.0, ""))
        late = self._late_answers.get(name)
        if time.monotonic() < until_s or (late is not None and not late.done()):
            raise CohortDownError(name, why)
        return _run_in_thread(lambda: self._query(name, ask))

    def _await_answer(self, name: str, begun: "Future[T]", until_s: float | None) -> T:
        """Return the answer of a cohort. Raises CohortDownError if there is none until *until_s*."""
        wait_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        if not wait([begun], wait_s).done:
            self._late_answers[name] = begun  # until it ends, the cohort is not queried
            self._down[name] = time.monotonic() + self._rest_s, f"no answer within {self._patience_s:g} s"
            raise CohortDownError(name, self._down[name][1])
        return begun.result()

    def _query(self, name: str, ask: Callable[[Scheduler], T]) -> T:
        try:
            scheduler = self._reach(name)
            try:
                return ask(scheduler)
            except _UNAVAILABLE:
                return ask(scheduler)  # the idle connection was probably closed
        except _UNAVAILABLE as exc:
            self._down[name] = time.monotonic() + self._rest_s, str(exc)
            raise CohortDownError(name, str(exc)) from exc

    def cohort_of_job(self, id: str) -> str:
        """Return the cohort of a job by its id or its task's id; the first cohort if there is no such job."""
        if not self.is_split:
            return self.names[0]
        located = self.first(lambda scheduler: scheduler.reader.knows(id) or None)
        return self.names[0] if located is None else located[0]


def _reconnect(scheduler: Scheduler) -> None:
    """Reopen a connection that was closed while idle."""
    scheduler.client.ping()


def _run_in_thread(call: Callable[[], T]) -> "Future[T]":
    """Run *call* in a daemon thread, which ends with the process even if it is blocked."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as exc:  # raised again for the caller
            future.set_exception(exc)

    threading.Thread(target=copy_context().run, args=(run,), name="cohort", daemon=True).start()
    return future
