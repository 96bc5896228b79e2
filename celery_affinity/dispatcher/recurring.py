"""Publish due recurring calls, and declare the recurring calls of the app's configuration on the server.

Both run the app's code: routers, functions that compute keys, handlers of ``before_task_publish``. So both run in a
dedicated thread, which can block. The server assigns a due call to one process at a time, and accepts its job only
while the call is due, so any number of dispatchers creates one job.
"""

import time

from celery import Celery
from redis.exceptions import RedisError

from ..background import DaemonPool
from ..errors import AffinityError, OptionError
from ..log_limit import limited_logger
from ..options.recurring import RecurringCall
from ..publishing import recurring
from ..publishing.app_config import settings_of
from ..results.reporter import ResultReporter
from ..scheduler.messages import DueCall
from ..scheduler.scheduler import Scheduler
from ..settings.table import PREFIX

logger = limited_logger(__name__)
#: Seconds until a due call is assigned again, to another process if this one hangs.
AGAIN_S = 10.0
#: Seconds between two log messages about the same failing call.
_LOG_INTERVAL_S = 600.0
#: Stands for the name of an app without a name in the declarations on the server.
NAMELESS = "app.conf"
#: Maximum seconds that `stop` waits for a call that is being published.
_MAX_STOP_S = 1.0


class RecurringCalls:
    """Publishes recurring calls of *app*. *reporter* has the app's tasks. Only `stop` waits, for at most 1 s."""

    def __init__(self, app: Celery, reporter: ResultReporter) -> None:
        self._app = app
        self._reporter = reporter
        self._scheduler: Scheduler | None = None
        self._threads = DaemonPool("affinity-recurring", self._run_next, max_threads=1)
        self._is_declared = False
        self._is_down = False
        self._logged_s: dict[str, float] = {}  # time of the last log message about a failing call

    def declare_again(self) -> None:
        """Make the next `look` declare the configuration's calls again, because the server may have lost them."""
        self._is_declared = False

    def look(self, scheduler: Scheduler, *, due: bool) -> None:
        """Start to publish calls if some are *due*, and declare the configuration's calls before."""
        self._scheduler = scheduler
        if due or not self._is_declared:
            self._threads.call()

    def stop(self) -> None:
        """Stop starting calls, and wait at most 1 s for the current one."""
        if self._threads.stop(_MAX_STOP_S):
            logger.warning("Not waiting for a recurring call that is still being made")

    # -- the thread
    def _run_next(self) -> bool:
        scheduler = self._scheduler
        assert scheduler is not None, "set by look"
        try:
            if not self._is_declared:
                self._is_declared = True  # first, because the server may be flushed at the same time
                try:
                    self._declare(scheduler)
                except BaseException:
                    self._is_declared = False
                    raise
            has_more = self._fire_next(scheduler)
        except (RedisError, OSError) as exc:
            if not self._is_down:
                logger.warning("The broker does not answer: recurring calls are made later: %s", exc)
            self._is_down = True
            return False
        self._is_down = False
        return has_more

    def _declare(self, scheduler: Scheduler) -> None:
        entries: list[RecurringCall] = []
        for name, call in recurring.calls_in_conf(self._app):
            if isinstance(call, RecurringCall):
                if settings_of(self._app).cohort_of(call.type) == scheduler.keys.cohort:
                    entries.append(call)
            else:
                logger.error("%srecurring[%r] has no effect: %s", PREFIX, name, call)
        app = self._app.main or NAMELESS
        try:
            replaced = scheduler.declare_recurring(entries, app=app)
        except OptionError as exc:
            logger.error("%srecurring has no effect at all: %s", PREFIX, exc)
            return
        for name in replaced:
            logger.warning(
                "Recurring call %r was declared differently by another app, or at run time: from now on "
                "%srecurring of %s applies, which changed last",
                name,
                PREFIX,
                app,
            )

    def _fire_next(self, scheduler: Scheduler) -> bool:
        """Publish the next due call. Return True if there was one."""
        identity = self._reporter.identity()
        due = scheduler.due_recurring(identity, again_s=AGAIN_S)
        if due is None:
            return False
        if not self._reporter.knows(due.task):
            scheduler.decline_recurring(identity, due.name)
            return True
        try:
            fired = fire_call(self._app, scheduler, due)
        except (RedisError, OSError):
            raise
        except Exception as exc:
            self._log_failure(due, exc)
            return True
        if fired:
            logger.info("Recurring call %r is made: no matching call became pending in time", due.name)
        return True

    def _log_failure(self, due: DueCall, exc: Exception) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s.get(due.name, -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S:
            self._logged_s[due.name] = now_s
            traceback = exc if not isinstance(exc, AffinityError) else None
            logger.error("Recurring call %r failed and will be retried: %s", due.name, exc, exc_info=traceback)


def fire_call(app: Celery, scheduler: Scheduler, due: DueCall) -> bool:
    """Publish a due call. Return False if it is no longer due, because a matching call may have become pending.

    Raises OptionError for an invalid call, and the errors of ``apply_async``.
    """
    job = recurring.recurring_job(app, due)
    published = scheduler.fire_recurring(due.name, due.due, job)
    if published is None:
        return False
    published.check(job)
    return True
