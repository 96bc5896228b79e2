"""The app of the screenshots: five types, a key, a reserve, and a type that no worker serves."""

import os
import time

from celery import Celery
from celery.exceptions import Reject

from celery_affinity import Affinity

url = os.environ.get("BROKER_URL", "redis://localhost")
app = Celery("shop", broker=url, backend=url)
app.conf.broker_transport = "celery_affinity:Transport"
app.conf.affinity_reserve = {"video": {"queued": 1}}
app.conf.affinity_keep = 3600


@app.task(name="shop.render", affinity="pdf")
def render(seconds):
    time.sleep(seconds)


@app.task(name="shop.tabulate", affinity="excel")
def tabulate(seconds):
    time.sleep(seconds)
    if seconds < 0.4:
        raise ValueError("no such sheet")


@app.task(name="shop.plan", affinity="route")
def plan(seconds):
    time.sleep(seconds)


@app.task(name="shop.encode", affinity=Affinity("video", exclusive="customer:{customer}"))
def encode(customer, seconds):
    time.sleep(seconds)
    return customer


@app.task(name="shop.scan", affinity="pdf", acks_late=True)  # an acked message could not be rejected any more
def scan(page):
    raise Reject(f"{page} cannot be read", requeue=False)


@app.task(name="shop.draw", affinity="drawing")
def draw():
    """No worker serves its type."""
