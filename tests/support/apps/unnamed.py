"""An app without a name, which knows its task with ``KNOWS=1`` alone."""

import os

from celery import Celery

app = Celery(broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"])
app.conf.broker_transport = "celery_affinity:Transport"

if os.environ.get("KNOWS") == "1":

    @app.task(name="unnamed.task")
    def task():
        pass
