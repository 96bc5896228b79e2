"""OpenTelemetry's instrumentation of Celery writes its spans into a file."""

from celery.signals import worker_process_init
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from . import make_app, note_run, write_event

app = make_app("traced")


class ToFile(SpanExporter):
    def export(self, spans):
        for span in spans:
            write_event(
                {
                    "scope": span.instrumentation_scope.name,
                    "name": span.name,
                    "kind": span.kind.name,
                    "status": span.status.status_code.name,
                    "trace": span.context.trace_id,
                    "span": span.context.span_id,
                    "parent": span.parent and span.parent.span_id,
                    "attributes": dict(span.attributes),
                    "events": [event.name for event in span.events],
                }
            )
        return SpanExportResult.SUCCESS


@worker_process_init.connect(weak=False)
def instrument(**kwargs):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()


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
    with trace.get_tracer("the publisher").start_as_current_span("publish"):
        calls = [task.apply_async(queue="pdf") for task in (render, fail, parent)]
    return [repr(each.get(timeout=30, propagate=False)) for each in calls]
