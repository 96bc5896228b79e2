"""An app whose tasks are retried once, and return the type, priority and mode in the retry's message."""

from celery_affinity import Affinity, Merge

from . import new_app

app = new_app("moved", affinity_priority_order="lower-first")


def _retried(task):
    if not task.request.retries:
        raise task.retry(countdown=0)
    information = task.request.delivery_info
    on_demand = (task.request.properties.get("celery_affinity") or {}).get("on_demand")
    return [information["routing_key"], information["priority"], on_demand]


@app.task(bind=True, affinity=Affinity("excel", priority=9), shared=False)
def again(self):
    return _retried(self)


@app.task(bind=True, affinity=Affinity("excel", priority=9, on_demand=True), shared=False)
def again_on_demand(self):
    return _retried(self)


@app.task(bind=True, affinity=Affinity("excel", priority=9, merge=Merge("{key}", keep="first")), shared=False)
def again_together(self, key):
    return _retried(self)
