"""One worker in the fleet: it joins, beats, holds claims, tells their ends, drains and leaves.

Neither Celery nor kombu is known here: `host` says what is asked of them, and `worker` answers.
Read `membership` first (the life of a worker), then `claims`, `outbox` and `telling` (the life of a claim).
"""
