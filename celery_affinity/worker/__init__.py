"""Inside Celery's worker: the only place that changes how Celery's own objects behave there.

A worker's part in the fleet belongs to `membership`, the work of its channel to `transport`.
Read `step` first (the consumer bootstep), then `following` and `end_of_task` (from the inbox to the end of a job).
"""
