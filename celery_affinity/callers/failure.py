"""An error that ended a job, in words: its type, and the beginning of its text."""

import sys

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.exceptions import Ignore, NotRegistered, Reject, Retry
from celery.utils.serialization import UnpickleableExceptionWrapper

#: Characters, at most, of an error's text, and of the name of its type. ``lua/jobs/ends.lua`` has room for them.
MOST = 200
_MOST_OF_NAME = 80

#: The header that only a task's message has.
_NO_TASK = "task"


def words(exc: BaseException) -> str:
    """Return an exception in words: "ValueError: no such page". The text of a Reject is its reason.

    Nothing is raised, whatever the exception's own code does.
    """
    name: object = type(exc).__name__
    what: object = exc
    if isinstance(exc, UnpickleableExceptionWrapper):  # the exception itself stayed in a pool process
        name, what = exc.exc_cls_name, Exception(*exc.exc_args)
    elif isinstance(exc, Reject):
        nested = isinstance(exc.reason, BaseException) and not isinstance(exc.reason, Reject)
        what = words(exc.reason) if nested else "" if exc.reason is None else exc.reason
    short_name = str(name)[:_MOST_OF_NAME]
    try:
        said = str(what)[:MOST]
    except (Exception, SystemExit):  # of the exception's own code
        said = "(what it says cannot be shown)"
    says_its_type = said.startswith(f"{short_name}(")  # the texts of billiard's exceptions do
    return printable(said if says_its_type else f"{short_name}: {said}" if said else short_name)


def printable(text: str) -> str:
    """Return *text* in UTF-8: JSON may hold halves of surrogate pairs, which Redis and logs cannot."""
    return text.encode(errors="backslashreplace").decode()


def error_of(failure: object) -> BaseException | None:
    """Return the exception in *failure*: an exception, or one of the wrappers that Celery's hooks get.

    None if there is none, or if the task has not failed: a Retry or an Ignore.
    """
    exc = _bare(failure)
    return exc if isinstance(exc, BaseException) and not isinstance(exc, (Ignore, Retry)) else None


def is_ignored(failure: object, kind: type[Ignore] = Ignore) -> bool:
    """Return whether the exception in *failure*, one of this *kind*, says that the task itself knows how it ended."""
    return isinstance(_bare(failure), kind)


def _bare(failure: object) -> object:
    exc = failure.exception if isinstance(failure, ExceptionInfo) else failure
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc


def why_refused() -> str:
    """Return the error that is being handled, in words: why no request was made of a message. "" if there is none."""
    exc = sys.exc_info()[1]
    if exc is None:
        return ""
    if type(exc) is KeyError and exc.args != (_NO_TASK,):  # from where Celery looks for the task
        exc = NotRegistered(*exc.args)
    return words(exc)
