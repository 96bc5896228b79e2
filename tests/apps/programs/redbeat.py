"""A schedule in Redis by celery-redbeat: an entry of the configuration, and an entry written while beat runs."""

from celery.schedules import schedule
from redbeat import RedBeatSchedulerEntry

from tests.support.processes import wait_until

from . import make_app, note_run, runs, server

app = make_app("redbeat", beat_scheduler="redbeat.RedBeatScheduler", redbeat_lock_timeout=10, beat_max_loop_interval=1)
app.conf.beat_schedule = {
    "of the configuration": {"task": "render", "schedule": 1.0, "args": ["a"], "options": {"queue": "pdf"}},
}


@app.task(bind=True, name="render")
def render(self, path):
    note_run(self, path)


def count(path):
    return [run[1] for run in runs()].count(path)


def scenario():
    wait_until(lambda: count("a") >= 2, 60, f"the entry of the configuration is due twice: {runs()}")
    entry = RedBeatSchedulerEntry("written", "render", schedule(1), ["b"], options={"queue": "excel"}, app=app)
    entry.save()
    wait_until(lambda: count("b") >= 2, 60, f"the written entry is due twice: {runs()}")
    stored = RedBeatSchedulerEntry.from_key(entry.key, app=app)
    entry.delete()
    return {
        "runs": sorted(set(map(tuple, runs()))),
        "stored": [stored.name, stored.task, stored.args, stored.options, stored.total_run_count >= 2],
        "keys": sorted(key for key in server.scan_iter("redbeat:*")),
    }
