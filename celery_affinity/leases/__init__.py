"""One worker in the fleet: joining, beating, holding claims and telling their ends, draining, leaving.

Neither Celery nor kombu is known here: `host` says what is asked of them, and `worker` answers.
Read `membership` first (the life of a worker), then `claims`, `outbox` and `reporting` (the life of a claim).
"""
