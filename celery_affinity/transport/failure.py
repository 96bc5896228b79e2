"""What is kept of an error that ended a job: its type, and the beginning of what it says."""

import sys
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.exceptions import Ignore, NotRegistered, Reject, Retry
from celery.utils.serialization import UnpickleableExceptionWrapper

#: Characters that are kept of what an error says, and of the name of its type. ``jobs/outcome.lua`` has room for them.
MOST = 200
_MOST_OF_NAME = 80

#: What a message lacks that is of no task.
_NO_TASK = "task"


def words(exc: BaseException) -> str:
    """Return what is kept of *exc*: "ValueError: no such page". Of a Reject the reason is what it says.

    Raises nothing, whatever the exception's own code does.
    """
    name: object = type(exc).__name__
    what: object = exc
    if isinstance(exc, UnpickleableExceptionWrapper):  # what it was in a pool process
        name, what = exc.exc_cls_name, Exception(*exc.exc_args)
    elif isinstance(exc, Reject):
        nested = isinstance(exc.reason, BaseException) and not isinstance(exc.reason, Reject)
        what = words(exc.reason) if nested else "" if exc.reason is None else exc.reason
    kept = str(name)[:_MOST_OF_NAME]
    try:
        said = str(what)[:MOST]
    except (Exception, SystemExit):  # its author's code
        said = "(what it says cannot be shown)"
    says_its_type = said.startswith(f"{kept}(")  # those of billiard
    text = said if says_its_type else f"{kept}: {said}" if said else kept
    return text.encode(errors="backslashreplace").decode()


def error_of(failure: Any) -> BaseException | None:
    """Return the exception in *failure*, which is one, or what Celery's hooks are given of one.

    None if there is none, or if the task has not failed: it runs again, or wishes to be ignored.
    """
    exc = failure.exception if isinstance(failure, ExceptionInfo) else failure
    if isinstance(exc, ExceptionWithTraceback):
        exc = exc.exc
    return exc if isinstance(exc, BaseException) and not isinstance(exc, (Ignore, Retry)) else None


def why_refused() -> str:
    """Return why a message is refused of which no request was made: the error that is being handled; "" if none is."""
    exc = sys.exc_info()[1]
    if exc is None:
        return ""
    if type(exc) is KeyError and exc.args != (_NO_TASK,):  # from where Celery looks for the task
        exc = NotRegistered(*exc.args)
    return words(exc)
