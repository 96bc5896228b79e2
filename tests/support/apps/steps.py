"""An app whose worker records the mode in the message of each task that starts."""

from celery import signature
from celery.signals import task_prerun

from . import new_app

app = new_app("steps", task_default_queue="steps")

#: List of ``name mode``, in the order in which tasks began.
BEGAN = "began"


@task_prerun.connect
def note(task, args, **_):
    if task.app is app and not task.request.is_eager:
        name = args[0] if task.name.startswith(__name__) else task.name
        kept = (task.request.properties or {}).get("celery_affinity") or {}
        app.backend.client.rpush(BEGAN, f"{name} {kept.get('on_demand')}")


@app.task
def step(name):
    return name


@app.task
def fail(name):
    raise ValueError(name)


@app.task(bind=True)
def retried(self, name):
    if not self.request.retries:
        raise self.retry(countdown=0)
    return name


@app.task(bind=True)
def replaced(self, name, by):
    return self.replace(signature(by, app=app))


@app.task(bind=True)
def grows(self, name, by, lazy=False):
    added = self.add_to_chord(signature(by, app=app), lazy=lazy)
    if lazy:
        added.delay()
    return name


@app.task(bind=True)
def told(self, name, *_):
    """A bound task: Celery sends it as a message if the task is an error callback."""


@app.task
def item(*values):
    return values
