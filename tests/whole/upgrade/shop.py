"""The app of both releases; its tasks write their steps into a Redis list."""

import os
import time

import redis
from celery import Celery

from celery_affinity import Affinity, Merge

app = Celery("shop", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"])
app.conf.broker_transport = "celery_affinity:Transport"
app.conf.task_acks_late = True
ledger = redis.Redis.from_url(os.environ["BROKER_URL"], db=1)


@app.task(bind=True, affinity="pdf")
def render(self):
    ledger.rpush("steps", f"began {self.request.id}", f"ended {self.request.id}")
    return self.request.id


@app.task(bind=True, affinity=Affinity("pdf", exclusive="customer:{customer}"))
def index(self, customer):
    ledger.rpush("steps", f"began {self.request.id}")
    time.sleep(0.05)
    ledger.rpush("steps", f"ended {self.request.id}")
    return self.request.id


@app.task(affinity=Affinity("pdf", merge=Merge("{city}", keep="last")))
def plan(city, number):
    ledger.rpush("steps", f"planned {city}")
    return city


@app.task(bind=True, affinity="pdf")
def hold(self):
    """Run until the key ``go`` exists."""
    ledger.rpush("steps", f"began {self.request.id}")
    while not ledger.exists("go"):
        time.sleep(0.05)
    ledger.rpush("steps", f"ended {self.request.id}")
    return self.request.id
