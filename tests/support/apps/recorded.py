"""An app with keys of each kind, for recordings. A list records the fencing token and task of each run."""

import time

from celery.exceptions import Reject

from celery_affinity import Affinity, Merge, Rate

from . import new_app

app = new_app("recorded", affinity_heartbeat_interval=0.5, affinity_worker_timeout=4, task_acks_late=True)

#: List of ``fence task``, in the order in which runs began.
RUNS = "runs"

#: A name in keys, which must not appear in any trace.
SECRET = "secretive"


def _begin(self):
    app.backend.client.rpush(RUNS, f"{self.request.affinity.fence} {self.name.rpartition('.')[2]}")


@app.task(bind=True, affinity="pdf")
def plain(self, seconds=0.0):
    _begin(self)
    time.sleep(seconds)


@app.task(bind=True, affinity=Affinity("pdf", priority=7, on_demand=True))
def urgent(self):
    _begin(self)


@app.task(bind=True, affinity="pdf")
def fails(self):
    _begin(self)
    raise ValueError


@app.task(bind=True, affinity="pdf")
def comes_back(self, times=2):
    _begin(self)
    if app.backend.client.incr("came back") <= times:
        raise Reject("not now", requeue=True)


@app.task(
    bind=True, affinity=Affinity("pdf", exclusive="city:{city}", rate=Rate("100/m", "mail:{city}"), tenant="{city}")
)
def keyed(self, city):
    _begin(self)


@app.task(bind=True, affinity=Affinity("pdf", merge=Merge("{city}", keep="last")))
def merged(self, city):
    _begin(self)
