"""The Celery app of all variants. Variants differ only by the configuration, which is in the environment."""

import json
import os
import time

from celery import Celery

from benchmarks import ledger

app = Celery("benchmark")
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    **json.loads(os.environ["BENCHMARK_CONF"]),
)


@app.task(name="noop")
def noop(number):
    ledger.note(number)


@app.task(name="lasting")
def lasting(number, seconds):
    ledger.note(number)
    time.sleep(seconds)
    ledger.note(number, ledger.END)
