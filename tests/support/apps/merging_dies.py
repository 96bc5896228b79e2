"""The app `merging`, where a process is killed once with SIGKILL while it reports to callers.

``DIES`` is a JSON array:
- the place: a method of the result backend, "ack_batch_reports" of the scheduler, "publish" for publishing the task
  `add`, or "body" for publishing `total`;
- the number of the call to this place at which the process dies;
- true if the process dies after this call, false if before;
- the victim: "process" (of the pool), "worker" (with its pool), or the process id of a server.
"""

import itertools
import json
import os
import signal
from contextlib import suppress
from functools import wraps

from celery.backends.redis import RedisBackend
from celery.signals import after_task_publish, before_task_publish

from celery_affinity import Merge
from celery_affinity.scheduler.scheduler import Scheduler

from .merging import app, merged, note, union

__all__ = ["app"]

PLACE, NUMBER, IS_DONE, WHO = json.loads(os.environ.get("DIES", '["nowhere", 0, false, "process"]'))

_numbers = itertools.count(1)


def die():
    with suppress(FileExistsError):
        os.close(os.open(os.environ["LEDGER"] + ".died", os.O_CREAT | os.O_EXCL))
        if isinstance(WHO, int):
            os.kill(WHO, signal.SIGKILL)
            return
        if WHO == "worker":
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def count(*_, sender=None, **__):
    if sender == {"publish": "add", "body": "total"}[PLACE] and next(_numbers) == NUMBER:
        die()


if PLACE in ("publish", "body"):
    (after_task_publish if IS_DONE else before_task_publish).connect(count, weak=False)
elif PLACE != "nowhere":
    owner = Scheduler if PLACE == "ack_batch_reports" else RedisBackend
    method = getattr(owner, PLACE)

    @wraps(method)
    def dying(*args, **kwargs):
        request = kwargs.get("request") or args[1]
        dies = (owner is Scheduler or getattr(request, "task", None) == "told") and next(_numbers) == NUMBER
        if dies and not IS_DONE:
            die()
        result = method(*args, **kwargs)
        if dies:
            die()
        return result

    setattr(owner, PLACE, dying)


@merged("told", Merge("{city}", fold=union), acks_late=True)
def told(city, changes):
    note("told", city, changes)
    if "fail" in changes:
        raise ValueError(len(changes))
    return changes


@app.task(name="late_part", affinity="merging", shared=False, acks_late=True)
def late_part(number):
    note("late_part", number)
    return number


@app.task(name="early_part", affinity="merging", shared=False)
def early_part(number):
    note("early_part", number)
    return number
