"""Sentry's integration with Celery: errors, traces and the check-ins of periodic tasks, written into a file."""

import sentry_sdk
from celery.schedules import schedule
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from . import make_app, note_run, write_event


class ToFile(Transport):
    def capture_envelope(self, envelope):
        for item in envelope.items:
            if item.payload.json:
                write_event({"type": item.type, "payload": item.payload.json})


sentry_sdk.init(
    dsn="http://key@127.0.0.1:9/1",
    transport=ToFile,
    traces_sample_rate=1.0,
    send_default_pii=True,
    integrations=[CeleryIntegration(monitor_beat_tasks=True)],
)
app = make_app("sentry")


class EachSecond(schedule):
    """A schedule of one minute, the shortest that Sentry accepts, which is due each second."""

    def is_due(self, last_run_at):
        return schedule(1, app=self.app).is_due(last_run_at)


app.conf.beat_schedule = {
    "each minute": {"task": "render", "schedule": EachSecond(60), "args": ["beat"], "options": {"queue": "excel"}},
}


@app.task(bind=True, name="render")
def render(self, path):
    note_run(self, path)


@app.task(bind=True, name="fail", max_retries=1)
def fail(self, path):
    note_run(self, path)
    if self.request.retries == 0:
        raise self.retry(countdown=0.1)
    raise ValueError(f"{path} fails")


def scenario():
    with sentry_sdk.start_transaction(op="test", name="the publisher") as transaction:
        calls = [render.apply_async(("a",), queue="pdf"), fail.apply_async(("b",), queue="excel")]
        trace = transaction.trace_id
    return {"trace": trace, "ends": [repr(each.get(timeout=30, propagate=False)) for each in calls]}
