"""A Django project with django-celery-beat, whose schedule is in the database, and django-celery-results."""

import os
from pathlib import Path

import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django_celery_beat", "django_celery_results"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": Path(os.environ["FOLDER"]) / "database",
            "OPTIONS": {"timeout": 60, "transaction_mode": "IMMEDIATE"},
        }
    },
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
    CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
)
django.setup()

from celery import chord, group
from django.core.management import call_command
from django.utils.timezone import now
from django_celery_beat.models import ClockedSchedule, IntervalSchedule, PeriodicTask
from django_celery_results.models import GroupResult, TaskResult

from tests.support.processes import wait_until

from . import make_app, note_run, runs

app = make_app("in_django", beat_scheduler="django_celery_beat.schedulers:DatabaseScheduler", task_track_started=True)
app.conf.result_backend = "django-db"


@app.task(bind=True, name="render")
def render(self, path, copies=1):
    note_run(self, path, copies, getattr(self.request, "periodic_task_name", None))
    return f"{path} rendered"


@app.task(bind=True, name="fail", max_retries=1)
def fail(self):
    if self.request.retries == 0:
        raise self.retry(countdown=0.1)
    raise ValueError("it fails")


@app.task(name="total")
def total(rendered):
    return sorted(rendered)


def migrate():
    call_command("migrate", verbosity=0)


def beat():
    """Run periodic tasks: with an interval, once, at a fixed time, and a task added while beat runs."""
    second, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
    of_render = {"task": "render", "interval": second}
    PeriodicTask.objects.create(name="each second", **of_render, args='["a"]', queue="pdf", priority=3)
    PeriodicTask.objects.create(name="once", **of_render, args='["b"]', one_off=True, queue="excel")
    soon = ClockedSchedule.objects.create(clocked_time=now())
    PeriodicTask.objects.create(
        name="at a time", task="render", clocked=soon, one_off=True, kwargs='{"path": "c", "copies": 2}', queue="excel"
    )

    def times(path):
        return [run[1] for run in runs()].count(path)

    wait_until(lambda: times("a") >= 2 and times("b") and times("c"), 90, f"all are due: {runs()}")
    PeriodicTask.objects.create(name="added", **of_render, args='["d"]', queue="pdf")
    wait_until(lambda: times("d") >= 2, 90, f"the task that was added is due: {runs()}")
    PeriodicTask.objects.update(enabled=False)
    results = TaskResult.objects.filter(status="SUCCESS")
    names = results.order_by().values_list("periodic_task_name", flat=True).distinct()
    wait_until(lambda: len(names.all()) == 4, 30, "each periodic task has a result")
    return {
        "runs": sorted(set(map(tuple, runs()))),
        "times": [times("b"), times("c")],
        "results": sorted(set(results.values_list("periodic_task_name", "task_name", "result"))),
        "run counts": sorted((each.name, each.total_run_count > 0) for each in PeriodicTask.objects.all()),
    }


def results():
    """Keep results in the database: of tasks that succeed, fail and are revoked, of a group and of a chord."""
    failed = fail.apply_async(queue="excel")
    parts = group(render.s(f"part {n}").set(queue="pdf") for n in range(3)).apply_async()
    parts.save()
    joined = chord([render.s(f"c{n}").set(queue="pdf") for n in range(3)], total.s().set(queue="excel")).apply_async()
    revoked = render.apply_async(("revoked",), queue="pdf", countdown=2)
    revoked.revoke()
    values = [parts.get(timeout=60), joined.get(timeout=60), repr(failed.get(timeout=60, propagate=False))]
    rows = TaskResult.objects.filter(task_id=revoked.id, status="REVOKED", task_name="render")
    wait_until(rows.exists, 60, f"it is revoked, and its name is stored: {revoked.state}")
    # Stock Celery stores the worker that had fetched the revoked task, this transport any worker: not compared.
    TaskResult.objects.filter(status="REVOKED").update(worker=None)
    columns = ("task_name", "status", "task_args", "task_kwargs", "result", "worker")
    rows = TaskResult.objects.values_list(*columns)
    return {
        "values": values,
        "restored": app.GroupResult.restore(parts.id).get(timeout=60),
        "groups": GroupResult.objects.count(),
        "rows": sorted([*map(str, row[:-1]), (row[-1] or "").partition("@")[0]] for row in rows),
    }
