"""The app of `celery_app` for a worker with a heartbeat every second, so that measured turns can be short."""

from benchmarks.apps.celery_app import app as app

app.conf.update(affinity_heartbeat_interval=1, affinity_worker_timeout=30)
