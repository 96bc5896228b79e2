"""The app of `celery_app`, for a worker under callgrind, which counts from one task to another."""

import os
import subprocess

from benchmarks.apps.celery_app import app as app
from benchmarks.worker_cost import FIRST, LAST

_noop = app.tasks["noop"]
_run = _noop.run
_CONTROL = {FIRST: ("-i", "on"), LAST: ("-d",)}


def run(number):
    """Run the task; first have callgrind begin to count, or write what it has counted."""
    if number in _CONTROL:
        subprocess.run(["callgrind_control", *_CONTROL[number], _WORKER], check=True, stdout=subprocess.DEVNULL)
    return _run(number)


_WORKER = str(os.getpid())  # tasks may run in processes that were forked from it
_noop.run = run
