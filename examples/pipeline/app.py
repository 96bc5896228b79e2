"""The Celery app. One setting enables celery_affinity. The option -Q of a worker declares the types it can run.

    celery -A examples.pipeline.app worker -Q pdf -c 1                  a specialist
    celery -A examples.pipeline.app worker -Q pdf,excel,index -c 1      a versatile worker

The demo starts its workers with such commands. You can also run them yourself.
"""

import os
from pathlib import Path

from celery import Celery

from examples.pipeline import OUTPUT

#: True on the side that runs the same app on stock Celery.
STOCK = os.environ.get("DEMO_TRANSPORT") == "stock"

#: Folder for the index and the records of this side.
FOLDER = Path(os.environ.get("DEMO_FOLDER", OUTPUT / "affinity"))

app = Celery("pipeline", broker=os.environ.get("REDIS_URL", "redis://localhost"), include=["examples.pipeline.tasks"])

if STOCK:
    app.conf.task_routes = {"pdf.*": {"queue": "pdf"}, "excel.*": {"queue": "excel"}, "index.*": {"queue": "index"}}
else:
    app.conf.broker_transport = "celery_affinity:Transport"
    app.conf.affinity_stretch = 16  # short jobs first; the fleet learns the duration from the file size

app.conf.update(
    task_ignore_result=True,
    task_soft_time_limit=15,
    worker_prefetch_multiplier=1,  # Celery's advice for jobs of this length; has no effect with celery_affinity
    broker_connection_retry_on_startup=True,
    task_publish_retry_policy={"max_retries": 60, "interval_max": 0.5},  # a failover takes seconds
    # A separate prefix, so that the demo does not touch the queues of other applications on the same server.
    broker_transport_options={"global_keyprefix": os.environ.get("DEMO_KEYPREFIX", "")},
)
