"""What observers are told of a worker's jobs: added up here until the server has counted it.

Waits, times in a slot and ends are added up by type. Each heartbeat hands the sums over, in pages, each with a number
by which a repeated page counts once. A page whose reply did not come is repeated, unless the server has forgotten the
worker meanwhile, and with it the number: then the page is dropped, since nobody knows whether it was counted. So a
server counts nothing twice, and may miss what a worker had not handed over when it was killed.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from redis.exceptions import ResponseError

from ..log_limit import limited_logger
from ..scheduler.messages import TypeMetricsDelta
from ..scheduler.scheduler import Scheduler
from ..schema import histograms
from ..schema.constants import MOST_METRICS, MOST_TYPES
from ..schema.histograms import Pace, average_pace

logger = limited_logger(__name__)

#: Factor by which a type's jobs take longer than before, or shorter, whose average is handed over at once.
_HAS_CHANGED = 4

#: Largest number of times of a type that wait to be added up.
_MOST_TIMES = 1_000

#: Shortest pause, s, between two times that changed averages are handed over before the heartbeat.
_PAUSE_S = 1.0


@dataclass
class _Type:
    """The sums of a type, and what is kept of it when they are handed over. *told_us*: the last average; None: none.

    *times*: each with its kind, not added up so far: that can wait, and the next task's start should not.
    """

    times: list[tuple[str, int]] = field(default_factory=list)
    grown: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    took_us: int = 0
    pace: Pace | None = None
    told_us: float | None = None

    @property
    def is_new(self) -> bool:
        """Whether jobs have ended, and no average was handed over yet."""
        return self.told_us is None and self.ended > 0

    @property
    def has_changed(self) -> bool:
        """Whether jobs take much longer than those whose average was handed over last, or much shorter."""
        if not (self.told_us and self.ended):
            return False
        times = self.took_us / self.ended / self.told_us
        return not 1 / _HAS_CHANGED < times < _HAS_CHANGED

    def add(self, kind: str, time_us: int) -> None:
        self.times.append((kind, time_us))
        if len(self.times) >= _MOST_TIMES:
            self.add_up()

    def add_up(self) -> None:
        for kind, time_us in self.times:
            self.grown[histograms.wait_field(kind, histograms.bucket_of(time_us))] += 1
            self.grown[histograms.sum_field(kind)] += histograms.within_us(time_us)
            if kind in histograms.RUNS:
                self.pace = average_pace(self.pace, time_us)
        self.times.clear()

    def handed_over(self, type_: str) -> TypeMetricsDelta:
        """Return the sums, and begin anew."""
        words = self.pace.in_words if self.pace and self.ended else ""
        sums = TypeMetricsDelta(type_, self.grown, self.ended, self.took_us, words)
        if self.ended:
            self.told_us = self.took_us / self.ended
        self.grown, self.ended, self.took_us = Counter(), 0, 0
        return sums


@dataclass(eq=False)
class MetricsPage:
    """Sums of one call. *unanswered*: calls without a reply, so that nobody knows whether the server counted them."""

    number: int
    sums: list[TypeMetricsDelta] = field(default_factory=list)
    unanswered: int = 0


class MetricDeltas:
    """The sums of one worker, by type. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: see `claims`
        self._types: dict[str, _Type] = {}
        self._pages: list[MetricsPage] = []
        self._number = 0
        self._handed_over_s = 0.0
        #: Whether the sums have what observers, and workers that look ahead, are to know before the next heartbeat.
        self.are_urgent = False

    def waited(self, type_: str, on_demand: bool, waited_us: int) -> None:
        """Add the wait of a job."""
        with self._lock:
            self._of(type_).add(histograms.WAITS[on_demand], waited_us)

    def ran(self, type_: str, kind: str, took_us: int) -> None:
        """Add a job's time in a slot. *kind*: see `rules.metrics.RUNS`."""
        with self._lock:
            its = self._of(type_)
            its.add(kind, took_us)
            its.ended += 1
            its.took_us += took_us
            if its.is_new or (its.has_changed and time.monotonic() - self._handed_over_s > _PAUSE_S):
                self.are_urgent = True

    def _of(self, type_: str) -> _Type:
        its = self._types.get(type_)
        if its is None:
            its = self._types[type_] = _Type()
        return its

    # -- handing over

    def hand_over(self, scheduler: Scheduler, worker: str) -> None:
        """Hand over the sums of *worker*, an id. Sums that the server refuses are handed over the next time.

        Raises a redis error if the server does not answer.
        """
        try:
            for page in self.pages():
                self.answered(page, is_known=scheduler.add_metrics(worker, page.number, page.sums))
        except ResponseError as exc:  # for observers alone: it does not keep the worker from its work
            logger.warning("The server refuses the metrics of this worker's jobs; the worker keeps them: %s", exc)

    def pages(self) -> Iterator[MetricsPage]:
        """Yield the pages to hand over: those that were not counted before, then, if all were, the sums until now.

        The caller says what was `answered` to each before it takes the next.
        """
        self.are_urgent = False  # what fails now is tried again with the next heartbeat
        yield from self._to_try()
        if not self._pages:
            self._fill_pages()
            yield from self._to_try()

    def _to_try(self) -> Iterator[MetricsPage]:
        for page in list(self._pages):
            page.unanswered += 1
            yield page

    def answered(self, page: MetricsPage, *, is_known: bool) -> None:
        """Record the reply to the call that handed *page* over: a server that knows the worker has counted it."""
        page.unanswered -= 1
        with self._lock:
            if is_known and page in self._pages:
                self._pages.remove(page)

    def drop_doubtful(self) -> None:
        """Drop pages that may have been counted: the server has forgotten the pages' numbers."""
        with self._lock:
            self._pages = [page for page in self._pages if not page.unanswered]

    def _fill_pages(self) -> None:
        with self._lock:
            self._handed_over_s = time.monotonic()
            room = 0
            for type_, its in list(self._types.items()):
                its.add_up()
                if not its.grown:
                    continue
                if room <= 0:
                    self._number += 1
                    self._pages.append(MetricsPage(self._number))
                    room = MOST_METRICS
                self._pages[-1].sums.append(its.handed_over(type_))
                room -= len(self._pages[-1].sums[-1].grown)
            for type_ in list(self._types)[: max(0, len(self._types) - MOST_TYPES)]:
                del self._types[type_]  # a type that the worker serves no more, most likely
