"""The page of the exported metrics."""

from celery_affinity.reports.metrics import METRICS

from .markdown import MADE, table

BEFORE = """# Metrics

Metrics for Prometheus: the web application, the command `metrics` and Flower serve the same list. There are few labels: no metric has a label
for keys, tasks or jobs. [Monitoring](../how-to/monitoring.md) has alerts and a dashboard.

"""


AFTER = """
Names that end with `_total` are counters; `_seconds` with the labels `le` and `wait_seconds`, `run_seconds` and `batch_size` are histograms
(`_bucket`, `_sum`, `_count`); all others are gauges.

- **Histograms** have a bucket for each power of two: waits and times in a slot from 1/256 s to 12 days. Counts and sums are exact. A wait begins
  with the publish, or with the ETA, and ends when the job arrives at its worker. A job that comes back is counted again, from its first publish.
  A job that its worker gives back without having started it counts no wait. A time in a slot lasts from the arrival to the end of the job.
  [Merged calls](../how-to/merge.md) count as one job here.
- **When they are counted**: each worker adds up the waits, the times in a slot and the ends of its jobs, and hands the sums over with each
  heartbeat (`affinity_heartbeat_interval`, 5 s) and when it stops; those of a type whose jobs it ends for the first time at once. If a worker is
  killed, the jobs since its last heartbeat are missing in these metrics. Nothing is counted twice.
- **How long they count**: the metrics of a type (`published`, `started`, `ended`, the histograms) are deleted a day after its last worker has
  gone. All other counters count since the fleet's data were first written. Prometheus' `rate` and `increase` notice a counter that restarted.
- `outcome` is `done`, `failed`, `revoked` or `expired`; for dead letters it is a [reason](errors.md#reasons-of-dead-letters).
- `rule` is `key`, `pause` or `reserve`. In a paused type, a job that a key blocks counts for the key, and any other job for the pause, so the
  rules may be added up. `pause` counts a pause of the type and a pause of all types; the jobs of a paused key count for the rule `key`.
- `slots` and `free_slots` count a versatile worker for each of its types: do not add them up. `profile_slots` counts each slot once;
  a profile is the set of types that a worker serves. The state `lent` has slots of jobs that wait for a rate limit, or in a buffer of celery-batches, while others use the slots.
- `merged_calls_total` grows at the end of a run, and only while workers serve the type.
- A type without workers and jobs has no series.
"""


def page() -> str:
    rows = [(f"`{each.name}`", ", ".join(f"`{label}`" for label in each.labels), each.help) for each in METRICS]
    return MADE + BEFORE + table(("metric", "labels", "meaning"), rows) + AFTER
