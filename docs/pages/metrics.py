"""The page of the metrics, from what is exported."""

from celery_affinity.observe.metric_list import FIGURES

from .markdown import MADE, table

BEFORE = """# Metrics

Prometheus metrics: the web application, the command `metrics` and Flower serve the same list. Labels are few: no
metric has one per key, per task or per job. [Alerts and dashboards](../how-to/alerts.md).

"""


AFTER = """
Names that end with `_total` are counters; `_seconds` with the labels `le` and `wait_seconds`, `run_seconds` and `batch_size` are histograms
(`_bucket`, `_sum`, `_count`); all others are gauges.

- **Histograms** have a bucket for each power of two: waits and times in a slot from 1/256 s to 12 days. Counts are exact. Sums are nearly:
  of a size of which there are more than eight, one time in eight is added, for all, so a mean is right within a few percent. A
  wait begins with the publish, or when a job is due, and ends when the job gets a slot; a job that comes back is counted again, from its
  first publish. A time in a slot goes from the claim to the release. [Merged calls](../how-to/merge.md) are one job here.
- **How long they count**: the figures of a type (`published`, `started`, `ended`, the histograms) last until a day after its last
  worker has gone, all others since the data's first day. Prometheus' `rate` and `increase` see a counter that began anew.
- `outcome`: `done`, `failed`, `revoked`, `expired`; `rejected`, `max_deliveries`, `lost`, `unreadable` for what is a dead letter.
- `rule` is `key`, `pause` or `reserve`. Of a paused type, jobs that a key keeps back count for the key, and all others for the pause, so
  rules may be added up. A type is paused by itself or with all others; the jobs of a paused key count for the rule `key`.
- `slots` and `free_slots` count a versatile worker for each of its types: do not add them up. `profile_slots` counts each slot once;
  a profile is the set of types that a worker serves. `lent`: slots that jobs leave to others while they wait for a rate limit.
- `merged_calls_total`: calls that ran with others, counted at the end of the run, while workers serve the type.
- A type that has no workers and no jobs any more has no series.
"""


def page() -> str:
    rows = [(f"`{each.name}`", ", ".join(f"`{label}`" for label in each.labels), each.help) for each in FIGURES]
    return MADE + BEFORE + table(("metric", "labels", "meaning"), rows) + AFTER
