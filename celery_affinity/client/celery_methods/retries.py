"""A retry that could not be published, because the broker did not answer for longer than the retry policy lasts.

Celery then rejects the run without a requeue: the task is neither run again nor failed, and its caller waits for ever.
Here a late-acked task is given back, and runs again after a pause, which counts as a requeue. An early-acked task has
been acked, so it fails with the error of the publish, as it does if the retry was refused for another reason.
"""

from functools import wraps
from typing import Any

from celery import Task
from celery.exceptions import Reject
from kombu.exceptions import OperationalError

from ..of_app import is_ours


def _is_of_no_answer(error: Exception) -> bool:
    """Return whether *error* is that of a broker that does not answer."""
    import redis  # not at the top: a process that has published nothing yet need not load it

    return isinstance(error, (OperationalError, redis.ConnectionError, redis.TimeoutError, OSError))


def _watch_retries() -> None:
    retry_task = Task.retry

    @wraps(retry_task)
    def retry(task: Any, *args: Any, **options: Any) -> Any:
        try:
            return retry_task(task, *args, **options)
        except Reject as exc:
            if exc.requeue or not isinstance(exc.reason, Exception) or not is_ours(task.app.conf.broker_transport):
                raise
            if task.acks_late and _is_of_no_answer(exc.reason):
                raise Reject(exc.reason, requeue=True) from exc.reason
            raise exc.reason from None

    Task.retry = retry


_watch_retries()
