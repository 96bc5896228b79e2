"""An app whose tasks have custom strategies, which buffer requests and run many requests together.

``batch`` is a celery-batches task, if that package is installed. ``gather`` has a minimal custom strategy. The strategy
of ``delay_start`` buffers requests and starts each of them like Celery. Each line of ``$LEDGER`` is one event of a run.
"""

import json
import os
import time
from contextlib import suppress

from celery import Task
from celery.utils.imports import symbol_by_name
from celery.worker.request import create_request_cls
from celery.worker.state import task_reserved
from celery.worker.strategy import hybrid_to_proto2

from celery_affinity.worker import request_end

from . import new_app

app = new_app("buffering", task_default_queue="pdf")
OPTIONS = json.loads(os.environ.get("OPTIONS", "{}"))

request_end.NOWHERE_FOR_S = float(os.environ.get("NOWHERE_FOR_S", "30"))


def note(event, jobs):
    line = json.dumps({"event": event, "jobs": jobs, "pid": os.getpid(), "time_s": time.time()})
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(line + "\n")


def run_together(numbers):
    note("start", numbers)
    until_s = time.monotonic() + 60
    while os.path.exists(os.environ.get("HOLD", "")) and time.monotonic() < until_s:
        time.sleep(0.01)
    note("end", numbers)


def run_batch(requests):
    run_together([request.args[0] for request in requests])
    for request in requests:
        app.backend.mark_as_done(request.id, request.args[0], request=request)


with suppress(ImportError):
    from celery_batches import Batches

    batch = app.task(base=Batches, name=f"{__name__}.batch", **OPTIONS)(run_batch)


class Buffering(Task):
    """Buffers ``flush_every`` requests, then runs their arguments together in the pool."""

    abstract = True
    flush_every = 10

    def __init__(self):
        self.kept = []

    def Strategy(self, task, app, consumer):
        request_cls = create_request_cls(
            symbol_by_name(task.Request), task, consumer.pool, consumer.hostname, consumer.event_dispatcher, app=app
        )

        def handle(message, body, ack, reject, callbacks, **options):
            if body is None and "args" not in message.payload:
                body, headers, decoded, utc = message.body, message.headers, False, True
            else:
                body, headers, decoded, utc = hybrid_to_proto2(message, message.payload)
            self.kept.append(
                request_cls(
                    message,
                    on_ack=ack,
                    on_reject=reject,
                    app=app,
                    hostname=consumer.hostname,
                    eventer=consumer.event_dispatcher,
                    task=task,
                    connection_errors=consumer.connection_errors,
                    body=body,
                    headers=headers,
                    decoded=decoded,
                    utc=utc,
                )
            )
            if len(self.kept) >= self.flush_every:
                kept, self.kept = self.kept, []
                self.flush(kept, consumer)

        return handle

    def flush(self, requests, consumer):
        numbers = [request._payload[0][0] for request in requests]

        def settle(result):
            for request in requests:
                request.acknowledge()

        consumer.pool.apply_async(run_together, (numbers,), callback=settle)


class DelayingStart(Buffering):
    abstract = True

    def flush(self, requests, consumer):
        for request in requests:
            task_reserved(request)
            consumer.on_task_request(request)


class DroppingRequests(Buffering):
    abstract = True

    def flush(self, requests, consumer):
        note("dropped", [request._payload[0][0] for request in requests])


@app.task(base=Buffering, **OPTIONS)
def gather(number):
    raise AssertionError("its strategy runs it")


@app.task(base=DelayingStart, **OPTIONS)
def delay_start(number):
    run_together([number])
    return number


@app.task(base=DroppingRequests, **OPTIONS)
def drop(number):
    raise AssertionError("its strategy drops it")


@app.task
def ordinary(number):
    note("ordinary", [number])
    return number
