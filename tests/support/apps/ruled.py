"""An app with a rule of each kind, whose tasks take as long as they are told: for records that are replayed."""

import os
import time

from celery import Celery

from celery_affinity import Affinity, Merge, Rate, Tenant

app = Celery("ruled", broker=os.environ["BROKER_URL"])
app.conf.update(
    broker_transport="celery_affinity:Transport",
    broker_connection_retry_on_startup=True,
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
