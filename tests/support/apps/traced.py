"""An app whose workers write their spans to a file outside Redis, one JSON object per line."""

import os
import time

from celery.exceptions import Reject
from celery.signals import worker_init, worker_process_init
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from celery_affinity import Affinity, Merge, NotMerged

from . import new_app

app = new_app("traced", affinity_traces=True, affinity_worker_timeout=5.0, affinity_heartbeat_interval=1.0)

FAULT = os.environ.get("FAULT", "")


class ToFile(SpanExporter):
    """Writes each span, or fails or hangs depending on `FAULT`."""

    def export(self, spans):
        if FAULT == "raises":
            raise RuntimeError("the exporter is broken")
        if FAULT == "hangs":
            time.sleep(600)
        with open(os.environ["LEDGER"], "a") as ledger:  # one write: lines do not mix
            ledger.write("".join(span.to_json(indent=None) + "\n" for span in spans))


class Broken(SpanProcessor):
    def on_start(self, span, parent_context=None):
        raise RuntimeError("the processor is broken")


def instrument(**_):
    """Start to create spans, in a forked process or, for a pool without processes, in the worker process."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile()))
    if FAULT == "cannot start":
        provider.add_span_processor(Broken())
    trace.set_tracer_provider(provider)
    if not os.environ.get("WITHOUT_CELERY"):
        CeleryInstrumentor().instrument()


if os.environ.get("POOL") == "prefork":
    worker_process_init.connect(instrument, weak=False)
elif os.environ.get("POOL"):
    worker_init.connect(instrument, weak=False)


@app.task(affinity="pdf", shared=False)
def render(path):
    return path


@app.task(affinity="pdf", shared=False)
def sleep(seconds):
    time.sleep(seconds)


@app.task(affinity="pdf", bind=True, max_retries=1, shared=False)
def again(self):
    if not self.request.retries:
        raise self.retry(countdown=0)


@app.task(affinity=Affinity("pdf", merge=Merge("{city}", keep="last")), shared=False)
def merged(city):
    return city


@app.task(affinity=Affinity("pdf", exclusive="city:{city}"), bind=True, acks_late=True, shared=False)
def comes_back(self, city):
    if not self.request.delivery_info["redelivered"]:
        raise Reject("not yet", requeue=True)


@app.task(affinity="pdf", rate_limit="30/m", shared=False)
def limited():
    pass


def pairs(a, b):
    """Merge at most two calls."""
    if len(a.kwargs["numbers"]) > 1:
        raise NotMerged
    return a.replace(numbers=[*a.kwargs["numbers"], *b.kwargs["numbers"]])


@app.task(affinity=Affinity("pdf", merge=Merge("{city}", fold=pairs)), shared=False)
def in_pairs(city, numbers):
    return numbers
