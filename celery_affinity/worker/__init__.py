"""Inside Celery's worker: the only place that changes how Celery's own classes behave there.

What a worker is to the fleet is said in `membership`.
Read `step` first: the consumer bootstep.
"""
