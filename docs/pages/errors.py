"""The page of the errors, from their docstrings."""

import inspect

from celery_affinity import errors
from celery_affinity.schema.constants import REASONS

from .markdown import MADE, prose, table

BEFORE = """# Errors

Every error of celery_affinity is an `AffinityError`, and can be imported from `celery_affinity`. The message of an `OptionError` or a
`SettingError` names the option or the setting, the accepted values, and the value that came.

"""

RESULTS = """
## Results that are not the task's own

A caller's `AsyncResult` can have these results although the task did not produce them:

| state and exception | when |
| --- | --- |
| `FAILURE`, `WorkerLostError` | the worker died while it ran a task without `acks_late`; or the task's process died |
| `FAILURE`, `TimeLimitExceeded` | the task exceeded its hard time limit, as in stock Celery |
| `FAILURE`, `ResultLostError` | the run of a merged call ended, and the run's result is lost |
| `REVOKED`, `TaskRevokedError` | the task was revoked, or expired, before it ran |

"""


def page() -> str:
    own = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]
    own.sort(key=lambda each: inspect.getsourcelines(each)[1])
    rows = [(f"`{each.__name__}`", _bases(each), prose(each.__doc__).replace("\n\n", " ")) for each in own]
    reasons = table(
        ("reason", "what happened"), ((f"`{name}`", reason.what_happened) for name, reason in REASONS.items())
    )
    return (
        MADE + BEFORE + table(("error", "is a", "meaning"), rows) + RESULTS + "## Reasons of dead letters\n\n" + reasons
    )


def _bases(error: type) -> str:
    return ", ".join(f"`{base.__name__}`" for base in error.__bases__)
