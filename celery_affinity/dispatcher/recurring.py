"""Make the recurring calls that are due, and bring those of the app's configuration to the server.

Both run the app's code: routers, functions that make keys, handlers of ``before_task_publish``. So both have a thread
of their own, which may hang. The server hands out a call that is due to one process at a time, and takes its job only
while the call is due: any number of dispatchers make one job.
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

#: Time, s, after which a call that is due is handed out again: to another process, if this one hangs.
AGAIN_S = 10.0

#: Interval, s, at which the log says again of a call that it cannot be made.
_SAID_AGAIN_S = 600.0

#: Stands for the name of an app that has none, where the server keeps what an app declared.
NAMELESS = "app.conf"

#: Longest wait, s, of `stop` for a call that is being made.
_PATIENCE_S = 1.0


class RecurringCalls:
    """Make recurring calls of *app*. *teller* knows the app's tasks. Only `stop` waits, for 1 s at most."""

    def __init__(self, app: Celery, teller: ResultReporter) -> None:
        self._app = app
        self._teller = teller
        self._scheduler: Scheduler | None = None
        self._threads = DaemonPool("affinity-recurring", self._work, most=1)
        self._is_declared = False
        self._in_trouble = False
        self._said_s: dict[str, float] = {}  # when the log said of a call that it cannot be made

    def declare_again(self) -> None:
        """Have the next `look` bring the configuration's calls to the server, which may have lost them."""
        self._is_declared = False

    def look(self, scheduler: Scheduler, *, due: bool) -> None:
        """Begin to make calls if some are *due*, and before that declare those of the configuration."""
        self._scheduler = scheduler
        if due or not self._is_declared:
            self._threads.call()

    def stop(self) -> None:
        """Begin no further call, and wait 1 s for the one that is being made."""
        if self._threads.stop(_PATIENCE_S):
            logger.warning("Not waiting for a recurring call that is still being made")

    # -- in the thread

    def _work(self) -> bool:
        scheduler = self._scheduler
        assert scheduler is not None, "set by look"
        try:
            if not self._is_declared:
                self._is_declared = True  # first: the server may be flushed meanwhile
                try:
                    self._declare(scheduler)
                except BaseException:
                    self._is_declared = False
                    raise
            went_on = self._make_one(scheduler)
        except (RedisError, OSError) as exc:
            if not self._in_trouble:
                logger.warning("The broker does not answer: recurring calls are made later: %s", exc)
            self._in_trouble = True
            return False
        self._in_trouble = False
        return went_on

    def _declare(self, scheduler: Scheduler) -> None:
        entries: list[RecurringCall] = []
        for name, found in recurring.calls_in_conf(self._app):
            if isinstance(found, RecurringCall):
                if settings_of(self._app).cohort_of(found.type) == scheduler.keys.cohort:
                    entries.append(found)
            else:
                logger.error("%srecurring[%r] has no effect: %s", PREFIX, name, found)
        app = self._app.main or NAMELESS
        try:
            replaced = scheduler.declare_recurring(entries, app=app)
        except OptionError as exc:
            logger.error("%srecurring has no effect at all: %s", PREFIX, exc)
            return
        for name in replaced:
            logger.warning(
                "Recurring call %r was declared differently by another app, or at run time: from now on "
                "%srecurring of %s counts, which changed last",
                name,
                PREFIX,
                app,
            )

    def _make_one(self, scheduler: Scheduler) -> bool:
        """Make the next call that is due. Return whether there was one."""
        identity = self._teller.identity()
        due = scheduler.due_recurring(identity, again_s=AGAIN_S)
        if due is None:
            return False
        if not self._teller.knows(due.task):
            scheduler.decline_recurring(identity, due.name)
            return True
        try:
            fired = fire_call(self._app, scheduler, due)
        except (RedisError, OSError):
            raise
        except Exception as exc:
            self._say(due, exc)
            return True
        if fired:
            logger.info("Recurring call %r is made: no matching call became pending in time", due.name)
        return True

    def _say(self, due: DueCall, exc: Exception) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s.get(due.name, -_SAID_AGAIN_S) >= _SAID_AGAIN_S:
            self._said_s[due.name] = now_s
            known = exc if not isinstance(exc, AffinityError) else None
            logger.error("Recurring call %r failed and will be retried: %s", due.name, exc, exc_info=known)


def fire_call(app: Celery, scheduler: Scheduler, due: DueCall) -> bool:
    """Make a call that is due. Return whether it was: something that matches may have become pending meanwhile.

    Raises OptionError if it is no call that can be made, and whatever ``apply_async`` raises.
    """
    job = recurring.recurring_job(app, due)
    published = scheduler.fire_recurring(due.name, due.due, job)
    if published is None:
        return False
    published.check(job)
    return True
