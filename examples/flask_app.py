"""A Flask app whose invoices are rendered by workers for PDFs.

celery -A examples.flask_app:celery worker -Q pdf -c 1
flask --app examples.flask_app run
curl http://localhost:5000/invoices/7                a user waits for this one
curl --request POST http://localhost:5000/nightly    and nobody for these
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
    "broker_transport": "celery_affinity:Transport",  # the whole installation
    "broker_connection_retry_on_startup": True,
}


class InContext(Task):
    """Runs a task where `current_app` and the extensions work, as Flask's manual has it."""

    def __call__(self, *args, **kwargs):
        with app.app_context():
            return self.run(*args, **kwargs)


celery = Celery(app.name, task_cls=InContext)
celery.config_from_object(app.config["CELERY"])


@celery.task(affinity="pdf")
def render(number):
    time.sleep(0.25)  # as if it were work
    return f"invoice {number} on {current_app.config['PAPER']}"


@app.get("/invoices/<int:number>")
def invoice(number):
    # A user looks at a white page until this returns: it goes before the whole batch.
    return render.apply_async((number,), on_demand=True).get(timeout=30)


@app.post("/nightly")
def nightly():
    batch = group(render.s(number) for number in range(12)).apply_async()  # any time before the morning will do
    batch.save()
    return {"id": batch.id}, 202


@app.get("/nightly/<batch>")
def progress(batch):
    results = GroupResult.restore(batch, app=celery)
    return {"done": results.completed_count(), "of": len(results)}
