"""A Flask app whose invoices are rendered by Celery workers of type `pdf`.

celery -A examples.flask_app:celery worker -Q pdf -c 1
flask --app examples.flask_app run
curl http://localhost:5000/invoices/7                a user waits for this invoice
curl --request POST http://localhost:5000/nightly    a batch of invoices, rendered later
"""

import os
import time

from celery import Celery, Task, group
from celery.result import GroupResult
from flask import Flask, current_app

app = Flask(__name__)
app.config["PAPER"] = "A4"
app.config["CELERY"] = {
    "broker_url": os.environ.get("REDIS_URL", "redis://localhost"),
    "result_backend": os.environ.get("REDIS_URL", "redis://localhost"),
    "broker_transport": "celery_affinity:Transport",  # this line enables celery_affinity
    "broker_connection_retry_on_startup": True,
}


class ContextTask(Task):
    """Runs a task in Flask's app context, as in Flask's manual, so that `current_app` and extensions work."""

    def __call__(self, *args, **kwargs):
        with app.app_context():
            return self.run(*args, **kwargs)


celery = Celery(app.name, task_cls=ContextTask)
celery.config_from_object(app.config["CELERY"])


@celery.task(affinity="pdf")
def render(number):
    time.sleep(0.25)  # as if it were work
    return f"invoice {number} on {current_app.config['PAPER']}"


@app.get("/invoices/<int:number>")
def invoice(number):
    # The user waits for the response, so `on_demand` starts this before the whole batch.
    return render.apply_async((number,), on_demand=True).get(timeout=30)


@app.post("/nightly")
def nightly():
    # Queued jobs, which start when no on-demand job waits.
    batch = group(render.s(number) for number in range(12)).apply_async()
    batch.save()
    return {"id": batch.id}, 202


@app.get("/nightly/<batch>")
def progress(batch):
    results = GroupResult.restore(batch, app=celery)
    return {"done": results.completed_count(), "of": len(results)}
