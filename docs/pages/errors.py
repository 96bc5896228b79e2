"""The page of the errors, from their docstrings."""

import inspect

from celery_affinity import errors
from celery_affinity.observe.dead_letters import REASONS

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

DEAD = {
    "rejected": "the task, or its worker, rejected the message without requeueing it",
    "failed": "the task failed for good, and `affinity_keep_failed` keeps its message",
    "max_deliveries": "the job was delivered `affinity_max_deliveries` times: each time its worker died, or gave the job back without an ack",
    "lost": "the worker died after it had acked the message at the start of the task: the task may have run in part",
    "unreadable": "the message cannot be read: a stock producer, or another program, wrote or damaged it",
}


def page() -> str:
    own = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]
    own.sort(key=lambda each: inspect.getsourcelines(each)[1])
    rows = [(f"`{each.__name__}`", _bases(each), prose(each.__doc__).replace("\n\n", " ")) for each in own]
    reasons = table(("reason", "what happened"), ((f"`{reason}`", DEAD[reason]) for reason in REASONS))
    return (
        MADE + BEFORE + table(("error", "is a", "meaning"), rows) + RESULTS + "## Reasons of dead letters\n\n" + reasons
    )


def _bases(error: type) -> str:
    return ", ".join(f"`{base.__name__}`" for base in error.__bases__)
