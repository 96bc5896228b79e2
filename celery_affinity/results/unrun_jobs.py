"""Report the results of jobs that ended without a worker, in dedicated threads because a report can block.

The server assigns unreported ends and records acknowledgements. If a thread blocks, the server reassigns its end to
another process after an increasing delay.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from ..background import DaemonPool
from ..broker.failover import short_traceback
from ..log_limit import limited_logger
from ..scheduler.messages import UnreportedEnd
from ..scheduler.scheduler import Scheduler
from ..schema.job_record import is_batch
from .chords import ChordIsClaimedError
from .merged import deliver_later
from .reporter import ResultReporter, describe_error

logger = limited_logger(__name__)
#: Seconds after which a report is late: it is logged, and another process may try. Later attempts wait longer.
LATE_AFTER_S = 10.0
#: Number of threads, so that a blocked thread does not block the others.
THREADS = 4
#: Seconds before another thread is added while all threads hang. Doubles for each further thread.
_NEW_THREAD_AFTER_S = 60.0
#: Maximum seconds that `stop` waits for running reports.
_MAX_STOP_S = 3.0


@dataclass
class _Report:
    ending: UnreportedEnd
    since_s: float
    #: True once the caller can read the result: from then on only signal handlers still run.
    is_known: bool = False
    is_logged_late: bool = False


class UnrunJobReporter:
    """Reports ends through *reporter* in up to 4 threads. Only `stop` waits, for at most 3 s."""

    def __init__(self, reporter: ResultReporter, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._reporter = reporter
        self._now_s = now_s
        self._scheduler: Scheduler | None = None
        self._threads = DaemonPool("affinity-announcer", self._report_next, max_threads=THREADS, now_s=now_s)
        self._reports_by_thread: dict[int, _Report] = {}  # by thread id
        self._is_down = False
        self._logged_error_type: type[Exception] | None = None  # type of the last error logged with a traceback
        self._next_thread_s: float | None = None  # None if some thread does not hang
        self._pause_s = _NEW_THREAD_AFTER_S

    def announce(self, scheduler: Scheduler, *, unreported: bool) -> None:
        """Start to report ends if some are unreported, and log the late reports."""
        self._scheduler = scheduler
        for report in tuple(self._reports_by_thread.values()):
            if not report.is_logged_late and self._now_s() - report.since_s > LATE_AFTER_S:
                report.is_logged_late = True
                _log_late_report(report)
        if unreported:
            self._add_thread_if_all_hang()
            self._threads.call()

    def stop(self) -> None:
        """Start no further report, and wait at most 3 s for the running ones. Log the tasks of blocked reports."""
        hanging = self._threads.stop(_MAX_STOP_S)
        if hanging:
            tasks = ", ".join(report.ending.task_id for report in tuple(self._reports_by_thread.values()))
            logger.warning("Not waiting for %d thread(s) that report outcomes to callers; tasks: %s", hanging, tasks)

    def _add_thread_if_all_hang(self) -> None:
        hanging = sum(busy_for_s > LATE_AFTER_S for busy_for_s in self._threads.busy_for_s)
        if hanging < THREADS:
            self._next_thread_s, self._pause_s, self._threads.max_threads = None, _NEW_THREAD_AFTER_S, THREADS
            return
        if hanging < self._threads.max_threads:
            return  # the added thread works
        now_s = self._now_s()
        if self._next_thread_s is None:
            logger.error(
                "All %d threads that report outcomes to callers are blocked, in the result backend or in signal "
                "handlers. Outcomes of further such tasks are not reported, unless another process does it. Jobs "
                "continue",
                hanging,
            )
            self._next_thread_s = now_s + self._pause_s
        elif now_s >= self._next_thread_s:
            self._threads.max_threads += 1
            self._pause_s *= 2
            self._next_thread_s = now_s + self._pause_s

    # -- the threads
    def _report_next(self) -> bool:
        """Report the next end. Return True if there may be more."""
        scheduler = self._scheduler
        assert scheduler is not None, "set by announce"
        identity = self._reporter.identity()
        running = [report.ending.job_id for report in tuple(self._reports_by_thread.values()) if not report.is_known]
        try:
            ending = scheduler.next_report(identity, again_s=LATE_AFTER_S, telling=running)
            if ending is None:
                pass
            elif not ending.how:
                scheduler.set_aside([ending.job_id])
                logger.error(
                    "Job %s has ended with an unknown outcome, which cannot be reported. The job is quarantined",
                    ending.job_id,
                )
            elif not ending.for_anyone and not self._reporter.knows(ending.task_name):
                scheduler.leave_to_others(identity, [ending.job_id])
            else:
                self._report(scheduler, ending)
        except (RedisError, OSError) as exc:
            if not self._is_down:
                logger.warning(
                    "The broker does not answer, or answers unexpectedly: outcomes are reported to callers later: %s",
                    exc,
                )
            self._is_down = True
            return False
        self._is_down = False
        return ending is not None

    def _report(self, scheduler: Scheduler, ending: UnreportedEnd) -> None:
        message = scheduler.reader.message_of(ending.job_id) if ending.message is None else ending.message
        report = self._reports_by_thread[threading.get_ident()] = _Report(ending, self._now_s())

        def record() -> None:
            if not report.is_known:
                scheduler.ack_report([ending.job_id])
                report.is_known = True
                logger.info("Task %s[%s] is %s: reported to its caller", ending.task_name, ending.task_id, ending.how)

        try:
            if is_batch(ending.job_id):
                if deliver_later(self._reporter, scheduler, ending):
                    record()
            else:
                self._reporter.tell(ending, message, record)
        except ChordIsClaimedError as exc:
            logger.info("The caller of task %s gets the outcome %s later: %s", ending.task_id, ending.how, exc)
        except Exception as exc:
            if report.is_known:
                logger.error(
                    "The caller of task %s has the outcome %s, but a signal, link or chord failed: %s",
                    *(ending.task_id, ending.how, describe_error(exc)),
                    exc_info=self._traceback_of(exc),
                )
            else:
                logger.error(
                    "The caller of task %s cannot get the outcome %s yet; retrying later: %s",
                    *(ending.task_id, ending.how, describe_error(exc)),
                    exc_info=self._traceback_of(exc),
                )
        else:
            self._logged_error_type = None
        finally:
            del self._reports_by_thread[threading.get_ident()]

    def _traceback_of(self, exc: Exception) -> BaseException | None:
        """Return *exc* to log its traceback, only for the first error of a type and if `short_traceback` keeps it.

        A failing result backend causes the same error for thousands of tasks.
        """
        if type(exc) is self._logged_error_type:
            return None
        self._logged_error_type = type(exc)
        return short_traceback(exc)


def _log_late_report(report: _Report) -> None:
    if report.is_known:
        logger.warning(
            "The caller of task %s has the outcome %s, but a signal handler is blocked and occupies a thread",
            *(report.ending.task_id, report.ending.how),
        )
    else:
        logger.warning(
            "The caller of task %s does not have the outcome %s yet: the result backend is blocked. Other outcomes "
            "are reported in the meantime, and another process may report this one",
            *(report.ending.task_id, report.ending.how),
        )
