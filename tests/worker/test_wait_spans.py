"""Spans of waits, in one trace with the spans of opentelemetry-instrumentation-celery."""

import json
import time
from contextlib import contextmanager
from datetime import datetime

import pytest
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_affinity import publish_many
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.fleet import POOLS_IN_TIME, in_time
from ..support.ledger import whole_lines
from ..support.processes import start_worker, wait_until

pytestmark = pytest.mark.whole

TRACED = "tests.support.apps.traced"
SOON_S = 30


class Traced:
    """Workers that write their spans to a file, and a producer that keeps its spans in memory."""

    def __init__(self, app, server, redis_client, ledger):
        self.url, self.ledger, self.tasks = server.url, ledger, app.tasks
        self.published = InMemorySpanExporter()
        self.scheduler = Scheduler(redis_client, Keys())
        self.status = Report(Reader(redis_client, Keys())).status

    def task(self, name):
        return self.tasks[f"{TRACED}.{name}"]

    def start(self, pool="threads", **env):
        env = {"LEDGER": str(self.ledger), "POOL": pool, **env}
        worker = start_worker(TRACED, self.url, ["pdf"], pool=pool, concurrency=1, name="one", env=env)
        worker.wait_ready(60)
        return worker

    @contextmanager
    def producer(self):
        """Record spans of the calls published in this context."""
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.published))
        CeleryInstrumentor().instrument(tracer_provider=provider)
        try:
            yield provider.get_tracer("test")
        finally:
            CeleryInstrumentor().uninstrument()

    def spans(self, *names):
        """Return the spans that the workers wrote in order of *names*, once they have exactly these names."""

        def written():
            found = [json.loads(line) for line in whole_lines(self.ledger)]
            return found if sorted(each["name"] for each in found) == sorted(names) else None

        found = wait_until(written, SOON_S, f"{names}")
        return sorted(found, key=lambda span: names.index(span["name"]))


@pytest.fixture
def traced(load_app, valkey, redis_client, tmp_path):
    return Traced(load_app(TRACED), valkey, redis_client, tmp_path / "spans")


@pytest.mark.parametrize("pool", POOLS_IN_TIME)
def test_publish_wait_and_run_are_one_trace(traced, pool):
    with traced.producer():
        before_s = time.time()
        result = traced.task("render").apply_async(("a",), priority=3, on_demand=True)
        time.sleep(0.3)  # the wait that the span records
        begun_s = time.time()
        traced.start(pool)
        assert result.get(timeout=SOON_S) == "a"
    wait, run = traced.spans("wait pdf", f"run/{TRACED}.render")
    (publish,) = traced.published.get_finished_spans()
    trace = f"0x{publish.context.trace_id:032x}"
    assert wait["context"]["trace_id"] == run["context"]["trace_id"] == trace
    assert wait["parent_id"] == run["parent_id"] == f"0x{publish.context.span_id:016x}"
    hostname = wait["attributes"].pop("celery_affinity.worker")
    assert hostname.startswith("one@")
    assert wait["attributes"] == {
        "celery.task_name": f"{TRACED}.render",
        "messaging.message.id": result.id,
        "messaging.destination.name": "pdf",
        "celery_affinity.mode": "on demand",
        "celery_affinity.priority": 3,
        "celery_affinity.deliveries": 0,
        "celery_affinity.calls": 1,
    }
    start, end = (_unix_s(wait[name]) for name in ("start_time", "end_time"))
    assert before_s - 0.1 <= start <= begun_s, "one machine has one clock"
    assert begun_s <= end <= _unix_s(run["start_time"]) + 0.1


def test_retrys_wait_is_under_the_retrys_publish(traced):
    with traced.producer():
        traced.start()
        traced.task("again").delay().get(timeout=SOON_S)
    run, publish = f"run/{TRACED}.again", f"apply_async/{TRACED}.again"
    first, second, *_, published = traced.spans("wait pdf", "wait pdf", run, run, publish)
    assert first["context"]["trace_id"] == second["context"]["trace_id"]
    assert second["parent_id"] == published["context"]["span_id"]
    assert first["parent_id"] != second["parent_id"]


def test_wait_of_merged_calls_links_to_each_publish(traced):
    traced.scheduler.pause("type:pdf")
    with traced.producer():
        results = [traced.task("merged").delay("HH") for _ in range(3)]
        traced.start()
        traced.scheduler.resume("type:pdf")
        assert [each.get(timeout=SOON_S) for each in results] == ["HH"] * 3
    wait, _ = traced.spans("wait pdf", f"run/{TRACED}.merged")
    publishes = {f"0x{each.context.span_id:016x}" for each in traced.published.get_finished_spans()}
    linked = [each["context"]["span_id"] for each in wait["links"]]
    assert {wait["parent_id"], *linked} == publishes
    assert len(linked) == 2
    assert wait["attributes"]["celery_affinity.calls"] == 3


def test_calls_refused_by_a_run_have_their_own_wait(traced):
    traced.scheduler.pause("type:pdf")
    with traced.producer():
        results = [traced.task("in_pairs").delay("HH", [n]) for n in range(3)]
        traced.start()
        traced.scheduler.resume("type:pdf")
        assert [each.get(timeout=SOON_S) for each in results] == [[0, 1], [0, 1], [2]]
    waits = traced.spans("wait pdf", "wait pdf", *[f"run/{TRACED}.in_pairs"] * 2)[:2]
    first, second, third = (f"0x{each.context.span_id:016x}" for each in traced.published.get_finished_spans())
    linked = {each["parent_id"]: [link["context"]["span_id"] for link in each["links"]] for each in waits}
    assert linked == {first: [second], third: []}
    assert {each["parent_id"]: each["attributes"]["celery_affinity.calls"] for each in waits} == {first: 2, third: 1}


def test_requeued_jobs_wait_begins_at_its_publish(traced):
    traced.task("comes_back").delay("HH")
    traced.start()
    first, second, *_ = traced.spans("wait pdf", "wait pdf", *[f"run/{TRACED}.comes_back"] * 2)
    assert [each["attributes"]["celery_affinity.deliveries"] for each in (first, second)] == [0, 0], (
        "a requeue is no delivery"
    )
    assert {each["attributes"]["celery_affinity.key"] for each in (first, second)} == {"city:HH"}
    began, again = (_unix_s(each["start_time"]) for each in (first, second))
    assert abs(again - began) < 0.1, "one machine has one clock"
    assert _unix_s(second["end_time"]) > _unix_s(first["end_time"])


def test_wait_lasts_from_eta_to_claim_despite_rate_limits(traced):
    traced.start()
    published_s = time.time()
    ids = [traced.task("limited").apply_async(countdown=1).id for _ in range(2)]
    found = traced.spans("wait pdf", "wait pdf", *[f"run/{TRACED}.limited"] * 2)
    waits, runs = found[:2], found[2:]
    assert {each["attributes"]["messaging.message.id"] for each in waits} == set(ids)
    for each in waits:
        assert published_s + 0.9 <= _unix_s(each["start_time"]) <= published_s + 1.9, "not when it was published"
    late = max(_unix_s(each["start_time"]) for each in runs)
    assert late - min(_unix_s(each["start_time"]) for each in runs) > 1, "the limit held the second back"
    assert max(_unix_s(each["end_time"]) for each in waits) < late - 1, "in its worker"


def test_wait_of_a_prefetched_job_ends_at_its_claim(traced):
    first, running = [traced.task("sleep").delay(seconds).id for seconds in (0, 0.4)]
    published_s = time.time()
    held = traced.task("sleep").delay(0).id
    traced.start(CONF='{"affinity_lookahead": 8}')
    found = traced.spans(*["wait pdf"] * 3, *[f"run/{TRACED}.sleep"] * 3)
    waits = {each["attributes"]["messaging.message.id"]: each for each in found[:3]}
    assert waits.keys() == {first, running, held}
    runs = sorted(found[3:], key=lambda run: _unix_s(run["start_time"]))
    began, ended = (_unix_s(waits[held][name]) for name in ("start_time", "end_time"))
    assert ended < _unix_s(runs[1]["end_time"]) - 0.3, "while the job before it ran"
    assert began > published_s - 0.1, "one machine has one clock"


def test_calls_of_publish_many_join_the_publishing_trace(traced):
    with traced.producer() as tracer:
        with tracer.start_as_current_span("import"):
            ids = publish_many(traced.task("render"), [("a",), ("b",)])
        traced.start()
        wait, other, *_ = traced.spans("wait pdf", "wait pdf", *[f"run/{TRACED}.render"] * 2)
    *_, whole = traced.published.get_finished_spans()
    assert {each["attributes"]["messaging.message.id"] for each in (wait, other)} == set(ids)
    assert {each["context"]["trace_id"] for each in (wait, other)} == {f"0x{whole.context.trace_id:032x}"}


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_wait_and_run_share_a_trace_without_producer_spans(traced, pool):
    traced.task("render").delay("a")
    traced.start(pool)
    wait, run = traced.spans("wait pdf", f"run/{TRACED}.render")
    assert wait["context"]["trace_id"] == run["context"]["trace_id"]


def test_waits_are_recorded_without_celerys_instrumentation(traced):
    traced.task("render").delay("a")
    traced.start(WITHOUT_CELERY="1")
    (wait,) = traced.spans("wait pdf")
    assert wait["parent_id"] is None


def test_nothing_is_recorded_when_traces_are_off(traced):
    traced.start(CONF='{"affinity_traces": false}')
    assert traced.task("render").delay("a").get(timeout=SOON_S) == "a"
    traced.spans(f"run/{TRACED}.render")


@pytest.mark.parametrize("fault", ["raises", "cannot start"])
@pytest.mark.parametrize("pool", in_time("prefork", "threads", "solo"))
def test_tasks_run_when_spans_cannot_be_made(traced, pool, fault):
    worker = traced.start(pool, FAULT=fault)
    results = [traced.task("render").delay(n) for n in range(3)]
    assert [each.get(timeout=SOON_S) for each in results] == [0, 1, 2]
    wait_until(lambda: all(each.free == each.slots for each in traced.status().workers), SOON_S, "slots are free")
    assert "is broken" in worker.log()


def test_hanging_exporter_blocks_only_its_task(traced):
    traced.start("threads", FAULT="hangs")
    traced.task("render").delay("a")
    wait_until(lambda: traced.status().workers[0].free == 0, SOON_S, "the task's thread hangs")
    begun_us = traced.scheduler.reader.now_us()
    wait_until(lambda: traced.scheduler.reader.now_us() > begun_us + 6_000_000, SOON_S, "more than the timeout of 5 s")
    (worker,) = traced.status().workers
    assert worker.last_heartbeat_s < 5
    assert not worker.stalled


def test_worker_without_opentelemetry_names_the_package_to_install(traced, tmp_path):
    (tmp_path / "opentelemetry").mkdir()  # a package of this name without the module `trace`
    (tmp_path / "opentelemetry" / "__init__.py").touch()
    env = {"PYTHONPATH": str(tmp_path), "CONF": '{"affinity_traces": true}', "LEDGER": str(traced.ledger)}
    worker = start_worker(APP, traced.url, ["pdf"], env=env)
    wait_until(lambda: not worker.is_running, SOON_S, "the worker refuses to start")
    assert "affinity_traces needs OpenTelemetry: pip install 'celery-affinity[otel] @ git+http" in worker.log()


def _unix_s(text):
    return datetime.fromisoformat(text).timestamp()
