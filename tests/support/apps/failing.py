"""`tests.support.apps.typed` with three tasks for each way to end: acked early, late and strictly.

"early": before the task runs; "late": after the run; "strict": late, but not after a failure or a timeout.
"""

import os
import sys
import time

from celery import Task
from celery.exceptions import Ignore, Reject
from kombu import Connection

from .typed import app, note

ACKS = {
    "early": {"acks_late": False},
    "late": {"acks_late": True},
    "strict": {
        "acks_late": True,
        "acks_on_failure_or_timeout": False,
        "acks_on_failure": False,
        "acks_on_timeout": False,
    },
}

SECRETIVE = "what it says: " + "\u00e9" * 300


class UnpicklableError(Exception):
    def __init__(self, page, why):
        super().__init__(f"page {page}: {why}")


def each(**options):
    """Register a task once for each way to ack it."""

    def registered(body):
        for ack, acks in ACKS.items():
            name = f"{__name__}.{body.__name__}_{ack}"
            app.task(name=name, bind=True, affinity="pdf", **options, **acks)(_noted(body))
        return body

    return registered


def _noted(body):
    def run(self, job, *args):
        note("start", job)
        return body(self, *args)

    return run


@each()
def good(task):
    """Return."""


@each()
def fails(task):
    raise ValueError("no such page\n\x1b[31m")


@each()
def fails_at_length(task):
    raise LookupError(SECRETIVE)


@each()
def fails_unpicklably(task):
    raise UnpicklableError(7, "torn")


@each()
def returns_what_no_serializer_takes(task):
    return object()


@each(max_retries=1)
def retries(task):
    if not task.request.retries:
        raise task.retry(countdown=0)


@each(max_retries=1)
def retries_while_the_broker_is_away(task):
    if not task.request.delivery_info["redelivered"]:
        with Connection("redis://127.0.0.1:1", transport="celery_affinity:Transport") as away:
            raise task.retry(countdown=0, connection=away, retry=False)


@each(max_retries=0)
def retries_in_vain(task):
    try:
        raise OSError("the printer is off")
    except OSError as exc:
        raise task.retry(exc=exc, countdown=0) from exc


@each()
def ignores(task):
    raise Ignore("somebody else has done it")


@each()
def rejects(task):
    raise Reject("no such customer", requeue=False)


@each()
def rejects_because_of_an_error(task):
    raise Reject(ConnectionError("no way"), requeue=False)


@each()
def wants_to_run_again(task):
    if not task.request.delivery_info["redelivered"]:
        raise Reject("not now", requeue=True)


@each()
def never_runs_well(task):
    raise Reject("not today", requeue=True)


@each()
def exits(task):
    sys.exit(3)


@each(time_limit=1)
def takes_too_long(task):
    if not task.request.delivery_info["redelivered"]:
        time.sleep(60)


@each(soft_time_limit=1)
def takes_long(task):
    time.sleep(60)


@each()
def loses_its_process(task):
    os.kill(os.getpid(), 9)


@each(reject_on_worker_lost=True)
def loses_each_process(task):
    os.kill(os.getpid(), 9)


@each(retry_on_worker_lost=True, default_retry_delay=0)
def is_retried_when_its_process_is_lost(task):
    if not task.request.retries:
        os.kill(os.getpid(), 9)


class LostWhenItHasSucceeded(Task):
    def on_success(self, *args, **kwargs):
        os.kill(os.getpid(), 9)


@each(base=LostWhenItHasSucceeded)
def loses_its_process_when_it_has_succeeded(task):
    """Return."""


@each()
def is_revoked(task):
    time.sleep(60)
