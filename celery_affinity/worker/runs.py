"""One run of a task in a pool: its errors reach Celery, and the pool says whether the run goes on.

prefork tells Celery of every error of a task, in its body or after it. The pools that run tasks in the worker's own
process leave an error after the body (a result that cannot be stored, an `on_failure` that fails) to a thread or a
greenlet that nobody watches: stock Celery never learns that such a task has ended.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.worker.request import Request

from .pools import forks, has_in_a_process


def unless_called_off(request: Request | None, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run the task of *request*, unless the job was found to be another worker's when the task was accepted."""
    return None if getattr(request, "is_called_off", False) else run(*args, **kwargs)


def in_the_main_thread(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run *target* in a solo pool. Return its result, or its error as an ExceptionInfo. A worker's stop is raised."""
    try:
        return target(*args, **kwargs)
    except Exception:
        return ExceptionInfo()


def in_a_thread(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run *target* in a thread or a greenlet. Return its result, or its error as an ExceptionInfo."""
    try:
        return target(*args, **kwargs)
    except (Exception, WorkerShutdown, WorkerTerminate):  # in such a thread or greenlet there is no worker to end
        return ExceptionInfo()


def while_given() -> bool:
    """Return True: a request that is being given to a pool is there, and the solo pool runs it meanwhile."""
    return True


def after_given(pool: BasePool, given: Any) -> Callable[[], bool]:
    """Return a function that says whether *pool* still has the run for which `apply_async` has returned *given*.

    The function says True for a pool that is not Celery's own: nobody can know.
    """
    if forks(pool):
        return _is_over if given is None else partial(has_in_a_process, pool, ref(given))
    if isinstance(pool, SoloPool):
        return _is_over
    if given is None and pool.is_green:  # eventlet's pool returns no greenlet; no other one ran meanwhile
        given = next(reversed(pool._pool_map.values()), None)
    return partial(_is_alive, given)


def _is_over() -> bool:
    return False


def _is_alive(run: Any) -> bool:
    """Return whether a future of threads, or a greenlet, has not ended."""
    return not (run.f.done() if hasattr(run, "f") else getattr(run, "dead", False))
