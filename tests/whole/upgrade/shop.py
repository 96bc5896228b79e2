"""The app of both releases. It writes what its tasks do into a list of Redis, in order."""

import os
import time

import redis
from celery import Celery

from celery_affinity import Affinity, Merge

app = Celery("shop", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"])
app.conf.broker_transport = "celery_affinity:Transport"
app.conf.task_acks_late = True
book = redis.Redis.from_url(os.environ["BROKER_URL"], db=1)


@app.task(bind=True, affinity="pdf")
def render(self):
    book.rpush("told", f"began {self.request.id}", f"ended {self.request.id}")
    return self.request.id


@app.task(bind=True, affinity=Affinity("pdf", exclusive="customer:{customer}"))
def index(self, customer):
    book.rpush("told", f"began {self.request.id}")
    time.sleep(0.05)
    book.rpush("told", f"ended {self.request.id}")
    return self.request.id


@app.task(affinity=Affinity("pdf", merge=Merge("{city}", keep="last")))
def plan(city, number):
    book.rpush("told", f"planned {city}")
    return city


@app.task(bind=True, affinity="pdf")
def hold(self):
    """Run until the list says that it may end."""
    book.rpush("told", f"began {self.request.id}")
    while not book.exists("go"):
        time.sleep(0.05)
    book.rpush("told", f"ended {self.request.id}")
    return self.request.id
