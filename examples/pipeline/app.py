"""The Celery app: one setting chooses celery_affinity. Its workers say with -Q what they can do.

    celery -A examples.pipeline.app worker -Q pdf -c 1                  a specialist
    celery -A examples.pipeline.app worker -Q pdf,excel,index -c 1      a versatile worker

The demo starts them so; they run without it, too.
"""

import os
from pathlib import Path

from celery import Celery

from examples.pipeline import OUTPUT

#: The comparison runs the same app without the one setting.
STOCK = os.environ.get("DEMO_TRANSPORT") == "stock"

#: Where this run keeps its index and its records.
FOLDER = Path(os.environ.get("DEMO_FOLDER", OUTPUT / "affinity"))

app = Celery("pipeline", broker=os.environ.get("REDIS_URL", "redis://localhost"), include=["examples.pipeline.tasks"])

if STOCK:
    app.conf.task_routes = {"pdf.*": {"queue": "pdf"}, "excel.*": {"queue": "excel"}, "index.*": {"queue": "index"}}
else:
    app.conf.broker_transport = "celery_affinity:Transport"
    app.conf.affinity_stretch = 16  # short readings first; the fleet learns how long a document of a size takes

app.conf.update(
    task_ignore_result=True,
    task_soft_time_limit=15,
    worker_prefetch_multiplier=1,  # what stock Celery is advised to use for jobs of this length; ours does not prefetch
    broker_connection_retry_on_startup=True,
    task_publish_retry_policy={"max_retries": 60, "interval_max": 0.5},  # a server that is replaced takes seconds
    # Nothing of a demo may meet the queues of an application that uses the same server.
    broker_transport_options={"global_keyprefix": os.environ.get("DEMO_KEYPREFIX", "")},
)
