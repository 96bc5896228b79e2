"""The app of `celery_app` for a solo worker that records the time of every processing step of a task."""

import json
import os
import time
from functools import wraps
from itertools import pairwise
from statistics import median

import redis
from celery.app import trace
from celery.signals import worker_shutdown
from celery.worker import request
from kombu.utils.eventio import _epoll

from benchmarks.apps.celery_app import app as app
from celery_affinity.broker.inflight import InFlightCommands
from celery_affinity.leases import claims
from celery_affinity.transport import inbox
from celery_affinity.worker import event_loop, request_end
from celery_affinity.worker.request import ClaimedRequest

_came = []


def _note(where, name, step):
    """Wrap the function *name* of *where* to record its start and end times as *step*."""
    function = getattr(where, name)

    @wraps(function)
    def noted(*args, **kwargs):
        _came.append((step, time.perf_counter_ns()))
        try:
            return function(*args, **kwargs)
        finally:
            _came.append((f"/{step}", time.perf_counter_ns()))

    setattr(where, name, noted)


_note(_epoll, "poll", "wait")
_note(event_loop.EventLoop, "_reply", "loop")
_note(InFlightCommands, "receive", "receive")
_note(claims.ClaimTable, "forget", "forget")
_note(claims.ClaimTable, "hold", "hold")
_note(inbox, "message_of_claim", "decode")
_note(ClaimedRequest, "__init__", "request")
_note(ClaimedRequest, "_submit", "give")
_note(ClaimedRequest, "on_accepted", "accept")
_note(trace, "fast_trace_task", "trace")
_note(request_end.EndOfTask, "_end", "end")
_note(redis.connection.AbstractConnection, "send_packed_command", "send")
request.fast_trace_task = trace.fast_trace_task  # the module imported the unwrapped function by name


@worker_shutdown.connect
def write(**_):
    """Write the steps in order of their first occurrence, with the number of occurrences and the median time in µs."""
    took_us = {}
    for (step, began_ns), (following, ended_ns) in pairwise(_came):
        took_us.setdefault((step, following), []).append((ended_ns - began_ns) / 1000)
    steps = [(*step, len(times), median(times)) for step, times in took_us.items()]
    with open(os.environ["BENCHMARK_STEPS"], "w") as file:
        json.dump(steps, file)
