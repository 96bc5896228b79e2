"""The Celery app. The comparison runs it on stock Celery, too, which is the larger part of what stands here.

celery -A examples.routes.app worker -Q route -c 2
"""

import os
from pathlib import Path

from celery import Celery

from examples.routes import OUTPUT
from examples.routes.work import AT_REST, STALE_AFTER_S

#: "affinity"; "merged", where calls merge; "stock"; or "lock": stock Celery with a lock for each city, and a queue of
#: the users' own.
SIDE = os.environ.get("ROUTES_SIDE", "affinity")

#: Where this run keeps the cities' books and its records.
FOLDER = Path(os.environ.get("ROUTES_FOLDER", OUTPUT / "affinity"))

URL = os.environ.get("REDIS_URL", "redis://localhost")
KEYPREFIX = os.environ.get("ROUTES_KEYPREFIX", "")

app = Celery("routes", broker=URL, include=["examples.routes.tasks"])

if SIDE in ("affinity", "merged"):
    app.conf.broker_transport = "celery_affinity:Transport"
    app.conf.affinity_reserve = {"route": {"queued": 1}}  # what nobody waits for leaves one slot free
else:
    app.conf.task_routes = {"routes.*": {"queue": "route"}}

if SIDE == "merged":
    again = {"task": "routes.plan_city", "args": (AT_REST, []), "stale_after": STALE_AFTER_S}
    app.conf.affinity_recurring = {"plan-again": again}
    app.conf.result_backend = URL  # each caller gets the plan that has its change
    app.conf.result_backend_transport_options = {"global_keyprefix": KEYPREFIX}

app.conf.update(
    task_ignore_result=SIDE != "merged",
    worker_prefetch_multiplier=1,  # what stock Celery is advised to use for jobs of this length; ours does not prefetch
    broker_connection_retry_on_startup=True,
    # Nothing of an example may meet the queues of an application that uses the same server.
    broker_transport_options={"global_keyprefix": KEYPREFIX},
)
