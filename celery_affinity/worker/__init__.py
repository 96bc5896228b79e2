"""Integration into Celery's worker: the only package that changes the behaviour of Celery's own objects there.

Read `bootstep` first, then `job_feed` and `request_end`, which follow a job from the inbox to its end.
"""
