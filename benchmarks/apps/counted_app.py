"""The app of `celery_app` for a worker under callgrind, which counts instructions between two of the tasks."""

import os
import subprocess

from benchmarks.apps.celery_app import app as app
from benchmarks.worker_cost import FIRST, LAST

_noop = app.tasks["noop"]
_run = _noop.run
_CONTROL = {FIRST: ("-i", "on"), LAST: ("-d",)}


def run(number):
    """Run the task. Before task FIRST, callgrind starts to count. Before task LAST, it writes its counts."""
    if number in _CONTROL:
        subprocess.run(["callgrind_control", *_CONTROL[number], _WORKER], check=True, stdout=subprocess.DEVNULL)
    return _run(number)


_WORKER = str(os.getpid())  # tasks can run in forked processes with other process ids
_noop.run = run
