"""ddtrace's integration of Celery writes its spans into a file, and sends nothing to an agent."""

import ddtrace
from celery.signals import worker_process_init
from ddtrace.trace import TraceFilter, tracer

ddtrace.patch(celery=True)

from . import make_app, note_run, write_event

app = make_app("datadog")


class ToFile(TraceFilter):
    def process_trace(self, trace):
        for span in trace:
            write_event(
                {
                    "name": span.name,
                    "resource": span.resource,
                    "error": span.error,
                    "trace": str(span.trace_id),
                    "span": str(span.span_id),
                    "parent": str(span.parent_id),
                    "tags": {name: span.get_tag(name) for name in ("celery.action", "celery.state", "error.type")},
                }
            )


@worker_process_init.connect(weak=False)
def instrument(**kwargs):
    tracer.configure(trace_processors=[ToFile()])


@app.task(bind=True, name="render")
def render(self, path="a"):
    note_run(self, path)
    return path


@app.task(bind=True, name="fail", max_retries=1)
def fail(self):
    note_run(self)
    if self.request.retries == 0:
        raise self.retry(countdown=0.1)
    raise ValueError("it fails")


@app.task(bind=True, name="parent")
def parent(self):
    note_run(self)
    render.apply_async(("child",), queue="excel")


def scenario():
    instrument()
    with tracer.trace("publish"):
        calls = [task.apply_async(queue="pdf") for task in (render, fail, parent)]
    return [repr(each.get(timeout=30, propagate=False)) for each in calls]
