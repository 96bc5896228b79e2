"""An app with misspelt options from the environment. It does not import this project."""

import json
import os

from celery import Celery, shared_task

app = Celery("spelt", broker=os.environ["BROKER_URL"])
settings = {"broker_transport": os.environ.get("TRANSPORT", "celery_affinity:Transport"), "task_ignore_result": True}
settings.update(json.loads(os.environ.get("CONF", "{}")))
app.config_from_object(settings)


@app.task(name="good")
def good():
    pass


@app.task(name="wrong", **json.loads(os.environ.get("OPTIONS", "{}")))
def wrong():
    pass


@shared_task(name="shared", **json.loads(os.environ.get("SHARED", "{}")))
def shared():
    pass


@app.task(name="publishes")
def publishes(times):
    for _ in range(times):
        good.apply_async(queue="viedo")
