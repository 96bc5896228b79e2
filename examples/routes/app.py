"""The Celery app. Most of this module is only for the comparison, which also runs the app on stock Celery.

celery -A examples.routes.app worker -Q route -c 2
"""

import os
from pathlib import Path

from celery import Celery

from examples.routes import OUTPUT
from examples.routes.work import AT_REST, STALE_AFTER_S

#: "affinity"; "merged": calls merge; "stock"; "lock": stock Celery with a lock per city and a separate queue for users.
SIDE = os.environ.get("ROUTES_SIDE", "affinity")

#: Folder for the plan files and the records of this side.
FOLDER = Path(os.environ.get("ROUTES_FOLDER", OUTPUT / "affinity"))

URL = os.environ.get("REDIS_URL", "redis://localhost")
KEYPREFIX = os.environ.get("ROUTES_KEYPREFIX", "")

app = Celery("routes", broker=URL, include=["examples.routes.tasks"])

if SIDE in ("affinity", "merged"):
    app.conf.broker_transport = "celery_affinity:Transport"
    app.conf.affinity_reserve = {"route": {"queued": 1}}  # queued jobs leave one slot free for on-demand jobs
else:
    app.conf.task_routes = {"routes.*": {"queue": "route"}}

if SIDE == "merged":
    plan_again = {"task": "routes.plan_city", "args": (AT_REST, []), "stale_after": STALE_AFTER_S}
    app.conf.affinity_recurring = {"plan-again": plan_again}
    app.conf.result_backend = URL  # each caller gets a plan that includes its change
    app.conf.result_backend_transport_options = {"global_keyprefix": KEYPREFIX}

app.conf.update(
    task_ignore_result=SIDE != "merged",
    worker_prefetch_multiplier=1,  # Celery's advice for jobs of this length; has no effect with celery_affinity
    broker_connection_retry_on_startup=True,
    # A separate prefix, so that the example does not touch the queues of other applications on the same server.
    broker_transport_options={"global_keyprefix": KEYPREFIX},
)
