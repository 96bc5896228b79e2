"""Questions that several tests ask of a reader."""

from celery_affinity.observe.claim_order import order_now, upcoming
from celery_affinity.observe.explain import explain
from celery_affinity.rules.shared_settings import complete


def why(reader, job):
    """Return the explanation of a job that `ScriptedFleet.publish` made."""
    return explain(reader, f"task-{job}")


def next_jobs(reader, limit=1000):
    """Return the ids of the pending jobs in the order in which claims take them."""
    order = order_now(reader, None, reader.now_us(), complete(reader.hash("settings")))
    return [each.job_id for each in upcoming(reader, order, reader.lanes(), limit)]
