"""The app of `celery_app`, for a worker that adds up metrics of types for every other turn of tasks."""

from functools import wraps

from benchmarks.apps.celery_app import app as app
from benchmarks.systems import TASKS_A_TURN
from celery_affinity.leases.job_metrics import MetricDeltas

_ended = 0
_waited, _ran = MetricDeltas.waited, MetricDeltas.ran


def _counts():
    """Return whether the turn counts: not the first one, and every other one after it."""
    return _ended // TASKS_A_TURN % 2


@wraps(_waited)
def waited(self, *args):
    """Add up a wait, or nothing."""
    if _counts():
        _waited(self, *args)


@wraps(_ran)
def ran(self, *args):
    """Add up a time in a slot, or nothing."""
    global _ended
    if _counts():
        _ran(self, *args)
    _ended += 1


MetricDeltas.waited, MetricDeltas.ran = waited, ran
