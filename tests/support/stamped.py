"""A task with options, and the jobs of its calls."""

from kombu.utils.json import loads

from celery_affinity.publishing.message import PROPERTY


def published(app):
    """Return (type, lane, options, message) of every job that was published since the last call."""
    jobs = []
    for key in app.redis.scan_iter("*job:*"):
        job = app.redis.hgetall(key)
        message = loads(app.redis.get(key.replace(b"job:", b"message:")).decode())
        jobs.append((job[b"type"].decode(), job[b"lane"].decode(), message["properties"].get(PROPERTY, {}), message))
    app.redis.flushdb()
    return jobs


def one(app):
    """Return (type, lane) of the only job that was published since the last call."""
    ((type_, lane, _, _),) = published(app)
    return type_, lane


def task(app, **options):
    def nothing():
        pass

    return app.task(name=f"task{len(app.tasks)}", shared=False, **options)(nothing)
