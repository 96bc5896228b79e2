"""Queries of a reader that several tests share."""

from celery_affinity.reports.explain import explain
from celery_affinity.reports.queue_order import current_order, upcoming_jobs
from celery_affinity.settings.wire import complete_settings


def why(reader, job):
    """Return the explanation of a job that `ScriptedFleet.publish` made."""
    return explain(reader, f"task-{job}")


def next_jobs(reader, limit=1000):
    """Return the ids of the pending jobs in the order in which claims take them."""
    order = current_order(reader, None, reader.now_us(), complete_settings(reader.hash("settings")))
    return [each.job_id for each in upcoming_jobs(reader, order, reader.lanes(), limit)]
