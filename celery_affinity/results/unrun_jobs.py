"""Tell callers the ends of jobs for which no worker can speak, in threads of their own: a telling may hang.

The server hands out the ends to tell and records which were told. After a pause that grows with each try, the server
offers an end whose telling hangs here to another process.
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

#: Time, s, after which a telling is late: the log says so, and another process may try. The pauses before later tries
#: grow.
LATE_AFTER_S = 10.0

#: Number of threads: a thread that hangs does not hold up the others.
THREADS = 4

#: Pause, s, before one more thread is added while all threads hang. The pause doubles for each further thread.
_ADDED_AFTER_S = 60.0

#: Longest wait, s, of `stop` for tellings under way.
_PATIENCE_S = 3.0


@dataclass
class _EndInHand:
    ending: UnreportedEnd
    since_s: float
    is_known: bool = False
    """Whether the caller can know the end: from then on only handlers of signals still run."""
    is_said_to_be_late: bool = False


class UnrunJobReporter:
    """Have *teller* tell ends, in up to 4 threads. Only `stop` waits, for 3 s at most."""

    def __init__(self, teller: ResultReporter, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._teller = teller
        self._now_s = now_s
        self._scheduler: Scheduler | None = None
        self._threads = DaemonPool("affinity-announcer", self._tell_one, most=THREADS, now_s=now_s)
        self._in_hand: dict[int, _EndInHand] = {}  # by thread
        self._in_trouble = False
        self._traced: type[Exception] | None = None  # type of the last error logged with a traceback
        self._next_added_s: float | None = None  # None: not all threads hang
        self._pause_s = _ADDED_AFTER_S

    def announce(self, scheduler: Scheduler, *, untold: bool) -> None:
        """Begin to tell ends if some are *untold*, and log the tellings that are late."""
        self._scheduler = scheduler
        for told in tuple(self._in_hand.values()):
            if not told.is_said_to_be_late and self._now_s() - told.since_s > LATE_AFTER_S:
                told.is_said_to_be_late = True
                _say_what_is_late(told)
        if untold:
            self._add_one_if_all_hang()
            self._threads.call()

    def stop(self) -> None:
        """Begin no further telling, and wait 3 s for those under way. Logs the tasks of those that hang."""
        hanging = self._threads.stop(_PATIENCE_S)
        if hanging:
            tasks = ", ".join(each.ending.task_id for each in tuple(self._in_hand.values()))
            logger.warning(
                "Not waiting for %d thread(s) that tell callers the outcome of tasks; tasks: %s", hanging, tasks
            )

    def _add_one_if_all_hang(self) -> None:
        hanging = sum(busy_for_s > LATE_AFTER_S for busy_for_s in self._threads.busy_for_s)
        if hanging < THREADS:
            self._next_added_s, self._pause_s, self._threads.most = None, _ADDED_AFTER_S, THREADS
            return
        if hanging < self._threads.most:
            return  # the thread that was added works
        now_s = self._now_s()
        if self._next_added_s is None:
            logger.error(
                "All %d threads that tell callers the outcome of tasks hang, in the result backend or in signal "
                "handlers. Callers of further such tasks are not told, unless another process tells them. Jobs go "
                "on",
                hanging,
            )
            self._next_added_s = now_s + self._pause_s
        elif now_s >= self._next_added_s:
            self._threads.most += 1
            self._pause_s *= 2
            self._next_added_s = now_s + self._pause_s

    # -- in the threads

    def _tell_one(self) -> bool:
        """Tell the next end. Return whether more may be waiting."""
        scheduler = self._scheduler
        assert scheduler is not None, "set by announce"
        identity = self._teller.identity()
        telling = [each.ending.job_id for each in tuple(self._in_hand.values()) if not each.is_known]
        try:
            ending = scheduler.next_report(identity, again_s=LATE_AFTER_S, telling=telling)
            if ending is None:
                pass
            elif not ending.how:
                scheduler.set_aside([ending.job_id])
                logger.error(
                    "Job %s has ended with an unknown outcome: its caller cannot be told. The job is set aside",
                    ending.job_id,
                )
            elif not ending.for_anyone and not self._teller.knows(ending.task_name):
                scheduler.leave_to_others(identity, [ending.job_id])
            else:
                self._tell(scheduler, ending)
        except (RedisError, OSError) as exc:
            if not self._in_trouble:
                logger.warning("The broker does not answer, or answers unexpectedly: callers are told later: %s", exc)
            self._in_trouble = True
            return False
        self._in_trouble = False
        return ending is not None

    def _tell(self, scheduler: Scheduler, ending: UnreportedEnd) -> None:
        message = scheduler.reader.message_of(ending.job_id) if ending.message is None else ending.message
        told = self._in_hand[threading.get_ident()] = _EndInHand(ending, self._now_s())

        def record() -> None:
            if not told.is_known:
                scheduler.ack_report([ending.job_id])
                told.is_known = True
                logger.info("Task %s[%s] is %s: its caller is told", ending.task_name, ending.task_id, ending.how)

        try:
            if is_batch(ending.job_id):
                if deliver_later(self._teller, scheduler, ending):
                    record()
            else:
                self._teller.tell(ending, message, record)
        except ChordIsClaimedError as exc:
            logger.info("The caller of task %s is told later that the task is %s: %s", *_named(ending), exc)
        except Exception as exc:
            if told.is_known:
                logger.error(
                    "The caller of task %s is told that the task is %s, but a signal, link or chord failed: %s",
                    *(*_named(ending), describe_error(exc)),
                    exc_info=self._traceback_of(exc),
                )
            else:
                logger.error(
                    "Cannot tell the caller of task %s that the task is %s; retrying later: %s",
                    *(*_named(ending), describe_error(exc)),
                    exc_info=self._traceback_of(exc),
                )
        else:
            self._traced = None
        finally:
            del self._in_hand[threading.get_ident()]

    def _traceback_of(self, exc: Exception) -> BaseException | None:
        """Return *exc* to log its traceback: only for the first error of a type, and unless `traceback_of` omits it.

        A failing result backend causes the same error for thousands of tasks.
        """
        if type(exc) is self._traced:
            return None
        self._traced = type(exc)
        return short_traceback(exc)


def _named(ending: UnreportedEnd) -> tuple[str, str]:
    return ending.task_id, ending.how


def _say_what_is_late(told: _EndInHand) -> None:
    if told.is_known:
        logger.warning(
            "The caller of task %s is told that the task is %s, but a signal handler hangs and keeps a thread",
            *_named(told.ending),
        )
    else:
        logger.warning(
            "The caller of task %s is not told yet that the task is %s: the result backend hangs. Other callers "
            "are told meanwhile, and another process may tell this one",
            *_named(told.ending),
        )
