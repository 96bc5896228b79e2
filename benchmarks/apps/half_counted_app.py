"""The app of `celery_app` for a worker that collects type metrics only in every other turn of tasks."""

from functools import wraps

from benchmarks.apps.celery_app import app as app
from benchmarks.systems import TASKS_A_TURN
from celery_affinity.leases.job_metrics import MetricDeltas

_ended = 0
_waited, _ran = MetricDeltas.waited, MetricDeltas.ran


def _counts():
    """Return True if the current turn collects metrics: the second turn, the fourth turn and so on."""
    return _ended // TASKS_A_TURN % 2


@wraps(_waited)
def waited(self, *args):
    """Record a job's wait if the turn collects metrics."""
    if _counts():
        _waited(self, *args)


@wraps(_ran)
def ran(self, *args):
    """Record a job's run time if the turn collects metrics, and count the ended task."""
    global _ended
    if _counts():
        _ran(self, *args)
    _ended += 1


MetricDeltas.waited, MetricDeltas.ran = waited, ran
