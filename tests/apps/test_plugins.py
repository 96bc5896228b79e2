"""Plugins of Celery do the same on stock Celery's Redis transport and on this one."""

import re

import pytest

from celery_affinity.embedded.server import free_port

from .postgres import HOST
from .sides import on_both

pytestmark = pytest.mark.timeout(900)

PDF = ["pdf", "pdf"]
EXCEL = ["excel", "excel"]

#: Attributes of a span whose values differ from run to run.
_DIFFERS = re.compile(r"id|hostname|origin|reply|timelimit|eta")


def _start_workers(side, program):
    for queue in ("pdf", "excel"):
        side.start_worker(program, queue)


def _compare(scenario, tmp_path, **env):
    results = on_both(scenario, "plugins", tmp_path, **env)
    assert results["ours"] == results["stock"]
    return results["stock"]


@pytest.mark.parametrize("program", ["batches", "once", "singleton"])
def test_plugin_for_equal_calls_does_the_same(program, tmp_path):
    def scenario(side):
        _start_workers(side, program)
        return side.call(program)

    seen = _compare(scenario, tmp_path)
    assert len(seen["runs"]) == {"batches": 4, "once": 11, "singleton": 7}[program]


def test_celery_progress_does_the_same(tmp_path):
    def scenario(side):
        _start_workers(side, "progress")
        return side.call("progress")

    seen = _compare(scenario, tmp_path)
    assert seen["during"]["progress"]["percent"] == 25


def test_celery_aio_pool_does_the_same(tmp_path):
    def scenario(side):
        for queue in ("pdf", "excel"):
            env = {"CELERY_CUSTOM_WORKER_POOL": "celery_aio_pool.pool:AsyncIOPool", "CPA_AUTO_PATCH": "1"}
            side.start_worker("progress", queue, "--pool", "custom", **env)
        return side.call("progress", "coroutines")

    seen = _compare(scenario, tmp_path)
    assert seen["results"] == ["a fetched"] * 2 + ["b fetched"] * 2


def test_redbeat_does_the_same(tmp_path):
    def scenario(side):
        _start_workers(side, "redbeat")
        side.start_beat("redbeat")
        return side.call("redbeat")

    seen = _compare(scenario, tmp_path)
    assert seen["runs"] == [["render", "a", *PDF], ["render", "b", *EXCEL]]


def test_django_celery_beat_does_the_same(tmp_path):
    def scenario(side):
        side.call("in_django", "migrate")
        _start_workers(side, "in_django")
        side.start_beat("in_django")
        return side.call("in_django", "beat")

    seen = _compare(scenario, tmp_path)
    assert ["render", "a", 1, "each second", *PDF] in seen["runs"]
    assert seen["times"] == [1, 1]


def test_django_celery_results_does_the_same(tmp_path):
    def scenario(side):
        side.call("in_django", "migrate")
        _start_workers(side, "in_django")
        return side.call("in_django", "results")

    seen = _compare(scenario, tmp_path)
    assert len(seen["rows"]) == 9


def test_tenant_schemas_celery_does_the_same(postgres, tmp_path):
    def scenario(side):
        side.env["DATABASE"] = side.name
        postgres.create(side.name)
        side.call("tenants", "migrate")
        _start_workers(side, "tenants")
        return side.call("tenants")

    seen = _compare(scenario, tmp_path, POSTGRES_HOST=HOST, POSTGRES_PORT=str(postgres.port))
    assert seen["ends"]["red"] == ["red"] * 4


def test_flower_shows_and_does_the_same(tmp_path):
    def scenario(side):
        _start_workers(side, "monitored")
        port = free_port()
        side.env["FLOWER_URL"] = f"http://127.0.0.1:{port}"
        options = ["flower", f"--port={port}", "--address=127.0.0.1"]
        flower = side.start(
            "flower", "celery", "-A", "tests.apps.programs.monitored", *options, FLOWER_UNAUTHENTICATED_API="true"
        )
        flower.wait_for("Visit me at", 60)
        return side.call("monitored")

    seen = _compare(scenario, tmp_path)
    assert len(seen["tasks"]) == 4


def test_sentry_gets_the_same_events(tmp_path):
    def scenario(side):
        _start_workers(side, "sentry")
        side.start_beat("sentry", "--schedule", str(side.folder / "schedule"))
        answer = side.call("sentry")
        trace = answer["trace"]
        events = side.wait_for_events(lambda events: _has_all_of_sentry(events, trace), "all events are written")
        return {"ends": answer["ends"], **_of_sentry(events, trace)}

    seen = _compare(scenario, tmp_path)
    assert seen["errors"] == [["fail", "ValueError", "b fails", ["b"], 1]]


def _is_of(event, trace):
    return event["type"] == "transaction" and event["payload"]["contexts"]["trace"]["trace_id"] == trace


def _has_all_of_sentry(events, trace):
    """Return True if *events* contain the publisher, a run, a run with its retry, their error, and two runs of beat."""
    check_ins = [each["payload"]["status"] for each in events if each["type"] == "check_in"]
    errors = [each for each in events if each["type"] == "event" and each["payload"].get("transaction") == "fail"]
    return len([each for each in events if _is_of(each, trace)]) == 4 and errors and check_ins.count("ok") >= 2


def _of_sentry(events, trace):
    """Return the parts of Sentry's events that are the same in each run."""
    errors, traced, check_ins = [], [], set()
    for each in events:
        kind, event = each["type"], each["payload"]
        if kind == "check_in":
            check_ins.add((event["monitor_slug"], event["status"]))
        elif kind == "event" and "celery-job" in event["extra"]:  # others are of beat, which redbeat disturbs
            job = event["extra"]["celery-job"]
            (error,) = event["exception"]["values"]
            errors.append([event["transaction"], error["type"], error["value"], job["args"], len(event["tags"])])
        elif _is_of(each, trace):
            spans = [event["contexts"]["trace"], *event["spans"]]
            traced += [_of_span(event["transaction"], span) for span in spans if span["op"] != "db.redis"]
    return {"errors": errors, "traced": sorted(traced), "check-ins": sorted(map(list, check_ins))}


def _of_span(transaction, span):
    kept = ("messaging.destination.name", "messaging.message.retry.count", "messaging.system")
    data = span.get("data", {})
    return [transaction, span["op"], span.get("description") or "", *(str(data.get(key)) for key in kept)]


def test_opentelemetry_gets_the_same_spans(tmp_path):
    def scenario(side):
        _start_workers(side, "traced")
        ends = side.call("traced")
        events = side.wait_for_events(lambda events: len(events) >= 11, "all spans are written")
        return {"ends": ends, "spans": _of_opentelemetry(events)}

    seen = _compare(scenario, tmp_path)
    assert len(seen["spans"]) == 11


def test_datadog_gets_the_same_spans(tmp_path):
    def scenario(side):
        _start_workers(side, "datadog")
        ends = side.call("datadog")
        events = side.wait_for_events(lambda events: len(events) >= 11, "all spans are written")
        names = {each["span"]: [each["name"], each["resource"]] for each in events}
        spans = [
            [each["name"], each["resource"], each["error"], names.get(each["parent"]), sorted(each["tags"].items())]
            for each in events
        ]
        return {"ends": ends, "spans": sorted(spans, key=repr), "traces": len({each["trace"] for each in events})}

    seen = _compare(scenario, tmp_path)
    assert [span[1] for span in seen["spans"] if span[2]] == ["fail"]


def _of_opentelemetry(events):
    """Return each span with its parent, and the attributes that are the same in each run."""
    names = {each["span"]: each["name"] for each in events}
    return sorted(
        [
            each["name"],
            each["kind"],
            each["status"],
            names.get(each["parent"]) or "",
            each["trace"] == events[0]["trace"],
            each["events"],
            sorted(f"{key}={value}" for key, value in each["attributes"].items() if not _DIFFERS.search(key)),
        ]
        for each in events
    )
