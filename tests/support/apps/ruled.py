"""An app with a rule of each kind and tasks of a given length, for replayed records."""

import time

from celery_affinity import Affinity, Merge, Rate, Tenant

from . import new_app

app = new_app(
    "ruled",
    task_ignore_result=True,
    affinity_heartbeat_interval=0.5,
    affinity_reserve={"video": {"queued": 1}},
    affinity_tenants={"*": Tenant(max=1)},
)


@app.task(affinity="pdf")
def render(seconds):
    time.sleep(seconds)


@app.task(affinity=Affinity("video", exclusive="customer:{customer}"))
def encode(seconds, customer):
    time.sleep(seconds)


@app.task(affinity=Affinity("mail", rate=Rate("2/s", "mail")))
def mail(seconds):
    time.sleep(seconds)


@app.task(affinity=Affinity("pdf", tenant="{customer}"))
def report(seconds, customer):
    time.sleep(seconds)


@app.task(affinity=Affinity("pdf", merge=Merge("{customer}", keep="last")))
def refresh(seconds, customer):
    time.sleep(seconds)
