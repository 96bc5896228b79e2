"""Methods of Celery's classes that are wrapped so that a type leads to its queue: one function for each.

Celery has no hook where a call enters. Classes are changed, not apps: an app may be made before this import. Priority
and ``on_demand`` pass through here untouched: `stamping` reads them.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from celery.app.routes import Router
from celery.app.task import Task
from celery.canvas import Signature

from .. import destination, places
from ..of_app import is_ours


def _intercept(class_: type, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    method = getattr(class_, name)
    intercepted = wraps(method)(wrap(method))
    del intercepted.__wrapped__  # ``task_annotations`` would put the original in our place
    setattr(class_, name, intercepted)


def _options_of_task(method: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the options that a task has for all its calls: Celery merges them with a call's options, which count more.

    Celery caches these options on the task, so they are marked once for each task.
    """

    def _get_exec_options(task: Task) -> Any:
        options = method(task)
        if type(options) is not places.OptionsOfTask:
            options = task._exec_options = places.OptionsOfTask.marked(options)
        return options

    return _get_exec_options


def _signature_of_retry(method: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the place of a retry's first try, which Celery makes an option of the retry as if the caller had said so."""

    def signature_from_request(
        task: Task, request: Any = None, args: Any = None, kwargs: Any = None, queue: Any = None, **options: Any
    ) -> Any:
        signature = method(task, request, args, kwargs, queue, **options)
        if is_ours(task.app.conf.broker_transport):
            places.mark_first_try(signature.options, {"queue": queue, **options})
        return signature

    return signature_from_request


def _route(method: Callable[..., Any]) -> Callable[..., Any]:
    """Route a call to the queue of its type. Celery's router decides for everything that sees the call later."""

    def route(
        router: Router, options: Any, name: str, args: Any = (), kwargs: Any = None, task_type: Any = None
    ) -> Any:
        if router.app is None or not is_ours(router.app.conf.broker_transport):
            return method(router, options, name, args, kwargs, task_type)
        return destination.route(method, router, options, name, args, kwargs, task_type, task=task_type)

    return route


def _set(method: Callable[..., Any]) -> Callable[..., Any]:
    """Have a later ``.set()`` count more than an earlier one.

    Celery merges by name: an earlier ``queue=`` would stay beside a later ``affinity=``.
    """

    def set_(signature: Signature, immutable: Any = None, **options: Any) -> Any:
        if places.says_both(options) and _is_for_us(signature):
            places.check(options)
        if places.differ(signature.options, options) and _is_for_us(signature):
            counting = places.later_counts(signature.options, options)
            signature.options.clear()
            signature.options.update(counting)
        return method(signature, immutable, **options)

    return set_


def _merge(method: Callable[..., Any]) -> Callable[..., Any]:
    """Have the options of ``apply_async`` count more than those of its signature, which Celery merges by name."""

    def merge(
        signature: Signature, args: Any = None, kwargs: Any = None, options: Any = None, force: Any = False
    ) -> Any:
        args, kwargs, merged = method(signature, args, kwargs, options, force)
        if options and places.differ(signature.options, options) and _is_for_us(signature):
            counting = places.later_counts(signature.options, options)
            merged = {**counting, **{name: merged[name] for name in options}}
        return args, kwargs, merged

    return merge


def _is_for_us(signature: Signature) -> bool:
    return is_ours(signature.app.conf.broker_transport)


_intercept(Task, "_get_exec_options", _options_of_task)
_intercept(Task, "signature_from_request", _signature_of_retry)
Task.subtask_from_request = Task.signature_from_request  # Celery's other name of that method
_intercept(Router, "route", _route)
_intercept(Signature, "set", _set)
_intercept(Signature, "_merge", _merge)
