"""An ordinary Celery app that uses this transport but no other feature of this package."""

import os

from celery import Celery

app = Celery("ordinary", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"])
if os.environ.get("STOCK") != "1":
    app.conf.broker_transport = "celery_affinity:Transport"
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_cancel_long_running_tasks_on_connection_loss = False
app.conf.beat_schedule = {"every second": {"task": "tests.support.apps.ordinary.tick", "schedule": 1.0}}


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task
def fail(message):
    raise ValueError(message)


@app.task(bind=True, max_retries=3)
def third_time_lucky(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task(bind=True, autoretry_for=(KeyError,), retry_backoff=False, default_retry_delay=0.1, max_retries=2)
def autoretried(self):
    if self.request.retries < 1:
        raise KeyError("not yet")
    return self.request.retries


@app.task
def sleep(seconds):
    import time

    time.sleep(seconds)
    return seconds


@app.task
def remember(value, key):
    """Push *value* to a list in the result backend, so a test can read a callback's argument."""
    app.backend.client.rpush(key, str(value))


@app.task(ignore_result=True)
def tick():
    app.backend.client.incr("ticks")
