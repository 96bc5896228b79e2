"""Aggregate the metrics of a worker's jobs until the server has counted them.

Waits, slot times and ends are added up by type. Sizes and times of successful runs are kept by task, the last ones.
Each heartbeat sends the deltas in pages. A page has a number, so that the server counts a repeated page only once. A
page without a reply is repeated. If the server has since forgotten the worker, and with it the page's number, the page
is dropped, since it may have been counted. So a server counts nothing twice, but can miss the deltas that a worker had
not sent when it was killed.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from redis.exceptions import ResponseError

from ..log_limit import limited_logger
from ..scheduler.messages import TaskRuns, TypeMetricsDelta
from ..scheduler.scheduler import Scheduler
from ..schema import histograms
from ..schema.constants import (
    MAX_METRICS,
    MAX_NAME_LENGTH,
    MAX_RUNS_ADDED,
    MAX_TASKS_ADDED,
    MAX_TASKS_LEARNED,
    MAX_TYPES,
)
from ..schema.histograms import Pace, average_pace

logger = limited_logger(__name__)

#: If the average duration of a type changes by this factor, it is sent before the next heartbeat.
_CHANGE_FACTOR = 4

#: Maximum number of times of a type that are kept before they are added up.
_MAX_TIMES = 1_000

#: Minimum number of seconds between two early reports of changed averages.
_MIN_PAUSE_S = 1.0


@dataclass
class _TypeSums:
    """The sums of a type since the last page, and the averages that survive a page."""

    #: Kinds and times not added up yet: adding up can wait, the next task's start should not.
    times: list[tuple[str, int]] = field(default_factory=list)
    grown: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    took_us: int = 0
    pace: Pace | None = None
    #: Average duration in the last page, or None.
    reported_us: float | None = None

    @property
    def is_new(self) -> bool:
        """True if jobs have ended, and no average was sent yet."""
        return self.reported_us is None and self.ended > 0

    @property
    def has_changed(self) -> bool:
        """True if jobs take much longer, or much less time, than the average sent last."""
        if not (self.reported_us and self.ended):
            return False
        ratio = self.took_us / self.ended / self.reported_us
        return not 1 / _CHANGE_FACTOR < ratio < _CHANGE_FACTOR

    def add(self, kind: str, time_us: int) -> None:
        self.times.append((kind, time_us))
        if len(self.times) >= _MAX_TIMES:
            self.add_up()

    def add_up(self) -> None:
        for kind, time_us in self.times:
            self.grown[histograms.wait_field(kind, histograms.bucket_of(time_us))] += 1
            self.grown[histograms.sum_field(kind)] += histograms.within_us(time_us)
            if kind in histograms.RUNS:
                self.pace = average_pace(self.pace, time_us)
        self.times.clear()

    def handed_over(self, type_: str) -> TypeMetricsDelta:
        """Return the sums, and reset them."""
        pace_text = self.pace.in_words if self.pace and self.ended else ""
        sums = TypeMetricsDelta(type_, self.grown, self.ended, self.took_us, pace_text)
        if self.ended:
            self.reported_us = self.took_us / self.ended
        self.grown, self.ended, self.took_us = Counter(), 0, 0
        return sums


@dataclass
class _Runs:
    """The runs of a task since the last page: only the last ones have an effect on an average of the last 20."""

    number: int = 0
    last: deque[tuple[float | None, int]] = field(default_factory=lambda: deque(maxlen=MAX_RUNS_ADDED))


@dataclass(eq=False)
class MetricsPage:
    """The sums and the runs that one invocation sends."""

    number: int
    sums: list[TypeMetricsDelta] = field(default_factory=list)
    runs: list[TaskRuns] = field(default_factory=list)
    #: Number of invocations without a reply. The server may or may not have counted each of them.
    unanswered: int = 0


class MetricDeltas:
    """The sums of one worker, by type. Any thread can call any method."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: see `claims`
        self._types: dict[str, _TypeSums] = {}
        self._runs: dict[str, _Runs] = {}
        self._pages: list[MetricsPage] = []
        self._number = 0
        self._handed_over_s = 0.0
        #: True if observers, and workers with look-ahead, need the sums before the next heartbeat.
        self.are_urgent = False

    def waited(self, type_: str, on_demand: bool, waited_us: int, late_us: int | None = None) -> None:
        """Add a job's wait. *late_us*: time from its own due time to its start; None without a due time."""
        with self._lock:
            sums = self._sums_of(type_)
            sums.add(histograms.WAITS[on_demand], waited_us)
            if late_us is not None and late_us > 0:
                sums.add(histograms.LATE, late_us)
            elif late_us is not None:
                sums.grown[histograms.IN_TIME] += 1

    def ran(self, type_: str, kind: str, took_us: int) -> None:
        """Add a job's slot time of a *kind* from `histograms.RUNS`."""
        with self._lock:
            sums = self._sums_of(type_)
            sums.add(kind, took_us)
            sums.ended += 1
            sums.took_us += took_us
            if sums.is_new or (sums.has_changed and time.monotonic() - self._handed_over_s > _MIN_PAUSE_S):
                self.are_urgent = True

    def ran_task(self, task: str, size: float | None, took_us: int) -> None:
        """Add a successful run. *size*: its size, or None if it is unknown."""
        with self._lock:
            runs = self._runs.get(task)
            if runs is None:
                if len(self._runs) >= MAX_TASKS_LEARNED or len(task) > MAX_NAME_LENGTH:
                    return
                runs = self._runs[task] = _Runs()
            runs.number += 1
            runs.last.append((size, took_us))

    def _sums_of(self, type_: str) -> _TypeSums:
        sums = self._types.get(type_)
        if sums is None:
            sums = self._types[type_] = _TypeSums()
        return sums

    def hand_over(self, scheduler: Scheduler, worker: str) -> None:
        """Send the sums of the worker with id *worker*. Sums that the server refuses are sent again later.

        Raises a redis error if the server does not answer.
        """
        try:
            for page in self.pages():
                self.answered(page, is_known=scheduler.add_metrics(worker, page.number, page.sums, page.runs))
        except ResponseError as exc:  # metrics must not keep the worker from its work
            logger.warning("The server refuses the metrics of this worker's jobs; the worker keeps them: %s", exc)

    def pages(self) -> Iterator[MetricsPage]:
        """Yield the uncounted earlier pages, and then, if the server counted all of these, the sums so far.

        The caller calls `answered` for each page before it takes the next one.
        """
        self.are_urgent = False  # a failure is retried with the next heartbeat
        yield from self._pages_to_send()
        if not self._pages:
            self._fill_pages()
            yield from self._pages_to_send()

    def _pages_to_send(self) -> Iterator[MetricsPage]:
        for page in list(self._pages):
            page.unanswered += 1
            yield page

    def answered(self, page: MetricsPage, *, is_known: bool) -> None:
        """Record the reply for *page*: a server that knows the worker has counted the page."""
        page.unanswered -= 1
        with self._lock:
            if is_known and page in self._pages:
                self._pages.remove(page)

    def drop_doubtful(self) -> None:
        """Drop pages that may have been counted, since the server has forgotten their numbers."""
        with self._lock:
            self._pages = [page for page in self._pages if not page.unanswered]

    def _fill_pages(self) -> None:
        with self._lock:
            self._handed_over_s = time.monotonic()
            capacity = 0
            for type_, sums in list(self._types.items()):
                sums.add_up()
                if not sums.grown:
                    continue
                if capacity <= 0:
                    self._add_page()
                    capacity = MAX_METRICS
                self._pages[-1].sums.append(sums.handed_over(type_))
                capacity -= len(self._pages[-1].sums[-1].grown)
            for type_ in list(self._types)[: max(0, len(self._types) - MAX_TYPES)]:
                del self._types[type_]  # probably a type that the worker no longer serves
            tasks, self._runs = list(self._runs.items()), {}
            for index, first in enumerate(range(0, len(tasks), MAX_TASKS_ADDED)):
                if index == len(self._pages):
                    self._add_page()
                self._pages[index].runs = [
                    TaskRuns(task, runs.number, tuple(runs.last))
                    for task, runs in tasks[first : first + MAX_TASKS_ADDED]
                ]

    def _add_page(self) -> None:
        self._number += 1
        self._pages.append(MetricsPage(self._number))
