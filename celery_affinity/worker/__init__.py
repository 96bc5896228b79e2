"""Inside Celery's worker: the only place that changes how Celery's own objects behave there (`patches`).

What a worker is to the fleet belongs to `membership`, what a channel does to `transport`.
Read `step` first (the consumer bootstep), then `following` and `end_of_task` (from the inbox to the end of a job).
"""
