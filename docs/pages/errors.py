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

TRACES = """
## Errors and warnings of the lab

| input | text |
| --- | --- |
| the last line of a trace is cut | `line 4, the last one, is cut, and left out: what was written after it is not in the trace` |
| an earlier line is cut | `line 3: a row must be an object in JSON; the line is broken, and others follow` |
| another schema | `line 1: the schema must be 'celery-affinity-trace/2', got: 'celery-affinity-trace/3'` |
| a clock that steps | `line 3: the clock steps: ended_us must be started_us (3) or later, got: 2` |
| no jobs | `the trace has no jobs` |
| no claims | `fidelity unknown: the record has no claims` |
| unreadable settings | `the trace has settings that this version cannot read, and replaces by their defaults: age_weight=nan` |
| more slots than a worker has | `line 1: slots must be a whole number from 0 to 999,999, got: 1000000000000000` |
| half a character | `line 3: type must be a text in UTF-8, got: 'p\\ud800'` |
| an unserved type | `no worker of the trace serves the type(s) excel: their jobs are never claimed` |
| a target that no fleet reaches | `no fleet reaches this` with the reason, such as `the setting limits lets 1 jobs of 'pdf' run at a time` |
"""

DAMAGED = """
## Damaged input

| damaged input | outcome |
|---|---|
| a broadcast | logged and dropped. Impossible ids and stamps of a revoke (a list, `null`, half a surrogate pair) are left out with a warning. `add_consumer`, `rate_limit`, `time_limit`, `pool_grow`, `pool_shrink` and `autoscale` refuse names and numbers that would end a stock worker later |
| a message of a scheduled queue | a dead letter with its bytes: `unreadable` from a stock producer's list, `rejected` from a worker. Also with an ETA or expiry that is not a date, a `timelimit` that is not a pair of numbers, `retries` that are not a whole number, or an id or name that is not text. Celery acks a body that it cannot decode: `explain` shows `failed`, and why |
| a message of an unscheduled queue | logged and dropped, as on stock Celery |
| an item in a worker's inbox | logged and dropped. The server asks the worker for its job a few seconds later, and the job is pending again |
| a job's hash | hides no other job from reports; its unreadable parts are empty. A setting without a valid value is ignored with a warning. A `schema` that is not a number is refused |
"""

ENDS = """
## How a job ended

For [`affinity_keep`](settings.md#affinity_keep) seconds after the end of a job,
`celery -A shop affinity explain TASK_ID` shows how it ended. A dead letter is kept until it is replayed or dropped, or until
`affinity_dead_max` newer dead letters exist.

| state | the job |
|---|---|
| `done` | succeeded; or was retried (the retry is a separate job in `explain`); or raised `Ignore`; or was lost after its result had been stored |
| `failed` | ended with an exception: in its body, in the steps after its body, by a time limit (`TimeLimitExceeded`; but see [runs that come again](../explanation/reliability.md#runs-that-come-again)), with its pool process (`WorkerLostError`), or unnoticed by its worker (also `WorkerLostError`). An early-acked job is `failed` after any exception, even `Reject` with `requeue=True`, because its message was deleted. A message that Celery cannot decode is `failed`, too, because Celery acks it |
| `revoked` | was revoked: while it waited, in a worker before it started, or while it ran (`terminate=True`, if the pool can end a task) |
| `expired` | had not started when its time was over, on the server or in a worker |
| `dead` | is a dead letter. `reason` is `rejected` (`Reject`, a message that Celery refuses, an exception with `task_acks_on_failure_or_timeout = False`), `failed` (with `affinity_keep_failed`), `max_deliveries`, `max_requeues`, `lost` or `unreadable`: [the reasons](#reasons-of-dead-letters) |

`failed` and `dead` have a `why` if a worker reported it: the type of the exception and the first 200 characters of its message, such as
`ValueError: no such page`, `Reject: no such customer`, `NotRegistered: 'shop.tasks.gone'`. For `max_deliveries` and `max_requeues`, `why`
describes the last run, unless the worker died with it. `explain`, `dead list` (shortened), `dead show`, their `--json` and
`celery_affinity.explain` show the `why`. Metrics only count the kinds.

**The message of an exception can contain a secret.** Its first 200 characters are in Redis for `affinity_keep` seconds after the end of the
job, and in a dead letter as long as it exists. Everyone with read access to jobs there can read them. A terminal shows line breaks
and control characters escaped.

"""

LIMITS = """
## Limits

A step that would take the server too long is refused or costs time:

| limited value | limit | beyond the limit |
|---|---|---|
| stamps of a message | 100, and 20,000 bytes together, percent-encoded and with their names | `OptionError` at the caller; a stock producer's message becomes a dead letter |
| a message | 100 million characters | `OptionError` at the caller. Each MB takes about 2 ms of the server's time on the way to a worker: pass a reference to large data |
| a compressed body, after decompression | 100 MB in a worker; 10 MB in a process that only reports an end, or makes a key | a dead letter; only the caller itself gets the end, or there is no key |
| `retries`, and numbers of control messages such as `pool_grow` | 1,000,000, and 10,000 | a dead letter; the command is refused |
| scheduled queues of one worker | 1,000 | a worker does not start: `SettingError`. A consumer that is added later is not served, and the worker logs it. With jobs in all of 1,000 queues, placing ten jobs takes about 10 ms |
| the `why` of an end | the type of the exception and 200 characters of its message, 1,200 bytes at most | the rest is cut |
| claims of one worker | none | each heartbeat (5 s) takes about 2 ms for every 1,000 of them |
| profiles (different sets of queues) that serve one queue | none | a publish to it takes about 2 ms for every 1,000 of them |
| jobs of one task id, waiting jobs, workers | none | no extra cost for each |

Bodies are read up to these sizes, since a few kB can expand to several GB:

| reader | reads | any other body |
|---|---|---|
| the dispatcher that takes over a stock producer's list, revokes, keys of `affinity_task_rules`, filters by argument | JSON of up to 10 MB, also after decompression | is not decoded: the job has no id, ETA or key from its body |
| a process that reports an end to callers | up to 100 MB, or 10 MB if compressed | only the caller itself gets the end: no links, no chord |
| a worker that has the job | up to 100 MB after decompression; a content encoding that is a character set | is a dead letter |
| `inspect scheduled`, `inspect query_task` | up to 100 kB | shows `argsrepr` and `kwargsrepr` |

A stopped fleet without jobs leaves little in Redis: the numbers `fence`, `claim_number`, `schema` and `clock`; a field for each
setting (`settings`, `conf_last`) and for each kind of event (`counters`); dead letters, up to `affinity_dead_max`, until they are dropped; ended
jobs for `affinity_keep`; revoked names for three hours; and the last values of each app's app.conf (`conf_of:…`) for a month.
"""


def page() -> str:
    own = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]
    own.sort(key=lambda each: inspect.getsourcelines(each)[1])
    rows = [(f"`{each.__name__}`", _bases(each), prose(each.__doc__).replace("\n\n", " ")) for each in own]
    reasons = table(
        ("reason", "what happened"), ((f"`{name}`", reason.what_happened) for name, reason in REASONS.items())
    )
    return (
        MADE
        + BEFORE
        + table(("error", "is a", "meaning"), rows)
        + RESULTS
        + "## Reasons of dead letters\n\n"
        + reasons
        + ENDS
        + LIMITS
        + TRACES
        + DAMAGED
    )


def _bases(error: type) -> str:
    return ", ".join(f"`{base.__name__}`" for base in error.__bases__)
