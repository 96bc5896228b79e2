"""`tests.support.apps.typed` with tasks that fail after their body, and a result backend that fails for some tasks.

Errors are raised at each point after a task's body. With ``NOBODY_NOTICES``, the ends of jobs whose names begin with
"lost" are not noticed.
"""

import os
import sys

from celery import Task
from celery.backends.redis import RedisBackend
from celery.exceptions import Reject, WorkerShutdown
from celery.signals import task_failure, task_postrun, task_prerun, task_received, task_success

from celery_affinity.worker import request_end

from .typed import app, early, late, note  # noqa: F401  # they are part of it


class Backend(RedisBackend):
    """Stores results in Redis, and fails for tasks whose names describe the failure."""

    def store_result(self, task_id, result, state, *args, **kwargs):
        name = getattr(kwargs.get("request"), "task", None) or ""
        if name.endswith("no_memory_for_the_result"):
            raise MemoryError("no memory for a result")
        if name.endswith("no_place_for_the_result"):
            raise LookupError("no place for a result")
        return super().store_result(task_id, result, state, *args, **kwargs)


app.conf.result_backend = f"{__name__}.Backend+{os.environ.get('RESULT_URL', os.environ['BROKER_URL'])}"


class Failing(Task):
    def on_failure(self, *args, **kwargs):
        raise LookupError("on_failure fails")


class ShutDown(Task):
    def on_failure(self, *args, **kwargs):
        raise WorkerShutdown


class Exiting(Task):
    def on_failure(self, *args, **kwargs):
        sys.exit(3)


class Rejecting(Task):
    def after_return(self, *args, **kwargs):
        raise Reject("after_return rejects", requeue=False)


@app.task(affinity="pdf", base=Failing)
def on_failure_fails(job):
    note("start", job)
    raise ValueError(job)


@app.task(affinity="pdf", base=Exiting)
def on_failure_exits(job):
    note("start", job)
    raise ValueError(job)


@app.task(affinity="pdf", base=ShutDown)
def on_failure_shuts_down(job):
    note("start", job)
    raise ValueError(job)


@app.task(affinity="pdf", base=Rejecting)
def rejects_after_its_return(job):
    note("start", job)


@app.task(affinity="pdf")
def signals_fail(job):
    note("start", job)


@app.task(affinity="pdf")
def signals_fail_after_a_failure(job):
    note("start", job)
    raise ValueError(job)


@app.task(affinity="pdf")
def signals_exit_after_a_failure(job):
    note("start", job)
    raise ValueError(job)


@app.task(affinity="pdf")
def no_memory_for_the_result(job):
    note("start", job)


@app.task(affinity="pdf")
def no_place_for_the_result(job):
    note("start", job)


@app.task(affinity="pdf")
def no_name_for_the_result(job):
    """Return a value that no serializer accepts."""
    note("start", job)
    return object()


@task_prerun.connect
@task_postrun.connect
@task_success.connect
@task_failure.connect
@task_received.connect
def _fail(sender=None, **_):
    if "signals_fail" in getattr(sender, "name", ""):
        raise LookupError("a signal's handler fails")


@task_failure.connect
def _exit(sender=None, **_):
    if "signals_exit" in getattr(sender, "name", ""):
        sys.exit(4)


if os.environ.get("NOBODY_NOTICES") == "1":
    request_end.NOWHERE_FOR_S = 2.0
    _ending = request_end._ending_on_success

    def _ending_unless_lost(generated):
        on_success = _ending(generated)

        def ending(self, *args, **kwargs):
            is_lost = str(self.args[0]).startswith("lost") and not self.delivery_info["redelivered"]
            return None if is_lost else on_success(self, *args, **kwargs)

        return ending

    request_end._ending_on_success = _ending_unless_lost
