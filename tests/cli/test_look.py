"""`celery affinity status`, `explain`, `pending` and `top`, run as a user runs them."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

import celery_affinity
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.schema.values import withdrawn_mark

from ..support.apps import APP
from ..support.command import affinity
from ..support.processes import Process
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


@pytest.fixture
def backend(load_app):
    return load_app(APP).backend


def test_explain_shows_wait_and_run_time(valkey, fleet):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    fleet.end("worker", *fleet.inbox("worker"))
    key = fleet.scheduler.keys.key("job", "job")
    ended_us = int(fleet.scheduler.client.hget(key, "ended"))
    fleet.scheduler.client.hset(key, mapping={"enqueued": ended_us - 9_000_000, "claimed": ended_us - 2_000_000})
    said = affinity(valkey.url, "explain", "task-job").stdout
    assert "waited      7.0 s\n" in said
    assert "ran         2.0 s since its claim (the start time is unknown)\n" in said
    fleet.scheduler.client.hset(key, "started", ended_us - 1_500_000)
    assert "ran         1.5 s\n" in affinity(valkey.url, "explain", "task-job").stdout


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery
def test_explain_shows_values_on_request_unless_they_are_hidden(valkey, fleet, backend):
    message = json.dumps({"headers": {"argsrepr": "('a.pdf',)", "kwargsrepr": "{}"}})
    fleet.bury("buried")
    fleet.scheduler.client.set(fleet.scheduler.keys.key("message", "buried"), message)
    fleet.publish("job", "pdf", message=message)
    backend.store_result("task-job", ValueError("no page"), "RETRY", traceback="Traceback\n  in the\x1b[2J page")
    words = ("explain", "task-job", "--values")
    said = affinity(valkey.url, *words).stdout
    for line in ("arguments   ('a.pdf',)", "keywords    {}", "status      RETRY", "error       ValueError: no page"):
        assert f"{line}\n" in said
    assert "  in the" in said
    assert "\x1b[2J" not in said, "control characters of the traceback are escaped"
    assert "a.pdf" not in affinity(valkey.url, "explain", "task-job").stdout
    found = json.loads(affinity(valkey.url, *words, "--json").stdout)["values"]
    assert (found["args"], found["traceback"]) == ("('a.pdf',)", "Traceback\n  in the\x1b[2J page")
    hides = {"CONF": json.dumps({"affinity_show_values_to": "nobody"})}
    refused = affinity(valkey.url, *words, **hides)
    assert refused.returncode == 2
    assert "are shown to nobody (affinity_show_values_to), not to admin" in refused.stderr
    assert "a.pdf" in affinity(valkey.url, "dead", "show", "task-buried").stdout
    assert "a.pdf" not in affinity(valkey.url, "dead", "show", "task-buried", **hides).stdout


def test_status_shows_types_and_workers(valkey, fleet):
    fleet.join("one", "pdf", slots=2)
    fleet.join("two", "pdf", "a name\nwith a line break", slots=1)
    for number in range(5):
        fleet.publish(f"job{number}", "pdf", on_demand=number == 4)
    fleet.publish("later", "pdf", delay_s=60)
    fleet.publish("unserved", "drawing")
    run = affinity(valkey.url, "status")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    rows = {line.split("  ")[0]: line.split() for line in lines if line}
    assert rows["drawing"][1:3] == ["1", "0"]
    assert "no live worker serves it" in next(line for line in lines if line.startswith("drawing"))
    assert rows["pdf"][1:3] == ["2", "1"]
    assert rows["pdf"][-2:] == ["0", "3"], "free and busy slots"
    assert rows["one@host"][1:4] == ["pdf", "2", "0"]
    assert "a name\\nwith a line break" in run.stdout
    assert "scheduled for later: 1   dead letters: 0" in run.stdout


def test_status_shows_calls_column_when_calls_have_merged(valkey, fleet):
    fleet.publish("plain", "excel")
    assert "calls" not in affinity(valkey.url, "status").stdout
    rules = "merge=city most=1000 bytes=1000000"
    fleet.scheduler.publish(*fleet.made(["a+", "b+", "c+"], "pdf", task_name="tests.task", rules=rules))
    _, _, head, *lines = affinity(valkey.url, "status").stdout.splitlines()
    assert head.split()[:3] == ["type", "pending", "calls"]
    assert [line.split()[:3] for line in lines[:2]] == [["excel", "1", "1"], ["pdf", "1", "3"]]
    (excel, pdf) = json.loads(affinity(valkey.url, "status", "--json").stdout)["types"]
    assert (excel["calls"], pdf["calls"]) == (1, 3)


def test_status_shows_unserved_type_in_red(valkey, fleet):
    fleet.publish("unserved", "drawing")
    fleet.publish("served", "pdf")
    fleet.join("busy", "pdf")
    fleet.publish("waits", "pdf")
    terminal, its_end = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "celery", "-A", APP, "affinity", "status"],
        env={**os.environ, "BROKER_URL": valkey.url, "LEDGER": os.devnull},
        stdout=its_end,
        timeout=30,
        check=True,
    )
    shown = os.read(terminal, 100_000).decode()
    os.close(terminal)
    os.close(its_end)
    red = [line for line in shown.splitlines() if line.startswith("\x1b[31m")]
    assert len(red) == 2
    assert "No worker serves drawing." in red[0]
    assert "no live worker serves it" in red[1]


def test_status_as_json(valkey, fleet):
    fleet.join("one", "pdf", slots=2)
    fleet.publish("job", "pdf")
    fleet.publish("unserved", "drawing")
    found = json.loads(affinity(valkey.url, "status", "--json").stdout)
    drawing, pdf = found["types"]
    assert (pdf["type"], pdf["pending"], pdf["slots"], pdf["free"], pdf["busy"]) == ("pdf", 0, 2, 1, 1)
    assert (pdf["claimed"], drawing["claimed"]) == (1, 0)
    assert pdf["oldest_wait_s"] is None
    assert (drawing["unserved"], drawing["pending"]) == (True, 1)
    assert drawing["oldest_wait_s"] >= 0
    (worker,) = found["workers"]
    assert (worker["name"], worker["types"], worker["draining"]) == ("one@host", ["pdf"], False)


def test_explain_ignores_blanks_around_an_id(valkey, redis_client):
    run = affinity(valkey.url, "explain", " some-id\n")
    assert run.returncode == 1
    assert run.stdout.startswith("task some-id is unknown")


def test_explain_shows_why_a_task_waits(valkey, fleet):
    fleet.join("one", "pdf")
    fleet.publish("busy", "pdf")
    for number in range(12):
        fleet.publish(f"urgent{number}", "pdf", priority=8)
    for number in range(3):
        fleet.publish(f"asked{number}", "pdf", on_demand=True)
    fleet.publish("job", "pdf", priority=1)
    run = affinity(valkey.url, "explain", "task-job")
    assert run.returncode == 0, run.stderr
    rows = {line[:12].strip(): line[12:] for line in run.stdout.splitlines()}
    assert rows["state"].startswith("pending since ")
    assert rows["needs"] == "type pdf, priority 1, queued"
    assert " = 1,024.0 priority + " in rows["score"]
    assert rows["score"].endswith(" age + 500.0 rarity (1 slot that fits)")
    assert rows["rank"] == "16 of its type, 16 of all jobs that its slots could take"
    assert sorted(rows["ahead"].split(", ")) == ["12 of pdf priority 8", "3 of pdf priority 0 on demand"]
    assert rows["slots"] == "[pdf]: 1 slot on 1 worker, 0 free"
    assert rows["blocked by"] == "its slot is busy"
    assert re.fullmatch(r"from \S+ \S+ on, newly published jobs can no longer take a slot .*", rows["overtaken"])
    found = json.loads(affinity(valkey.url, "explain", "task-job", "--json").stdout)["waiting"]
    assert found["bound_s"] == 1375.25
    assert rows["wait"] == "unknown: no run time of such jobs is known yet"


def test_explain_as_json(valkey, fleet):
    fleet.publish("job", "drawing", priority=1)
    found = json.loads(affinity(valkey.url, "explain", "task-job", "--json").stdout)
    assert (found["state"], found["type"], found["priority"]) == ("pending", "drawing", 1)
    assert found["waiting"]["blocked_by"][0]["why"].startswith("no live worker serves type 'drawing'")
    assert json.loads(affinity(valkey.url, "explain", "nobody", "--json").stdout)["state"] == "unknown"
    unknown = affinity(valkey.url, "explain", "nobody")
    assert "task nobody is unknown" in unknown.stdout
    assert unknown.returncode == 1, "a script can tell"


def test_explain_shows_the_error_of_a_failed_task(valkey, fleet):
    fleet.join("one", "pdf")
    fleet.publish("job", "pdf")
    (claim,) = fleet.inbox("one")
    fleet.end("one", claim, outcome="failed ValueError: no such page\n\x1b[31m")
    rows = {line[:12].strip(): line[12:] for line in affinity(valkey.url, "explain", "task-job").stdout.splitlines()}
    assert rows["state"].startswith("failed since ")
    assert rows["why"] == "ValueError: no such page\\n\\x1b[31m"
    found = json.loads(affinity(valkey.url, "explain", "task-job", "--json").stdout)
    assert (found["state"], found["why"]) == ("failed", "ValueError: no such page\n\x1b[31m")


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        ([], "no live worker serves the type"),
        ([["pdf"]], "no run time of such jobs is known yet"),
        ([[withdrawn_mark("pdf"), "excel"]], "the workers that serve the type refuse it for the moment"),
    ],
)
def test_explain_shows_why_there_is_no_wait_estimate(valkey, fleet, workers, says):
    """Run times give no estimate without workers: an unserved type has no slots."""
    fleet.join("before", "pdf")
    fleet.publish("short", "pdf")
    fleet.end("before", *fleet.inbox("before"))
    fleet.scheduler.leave("before")
    for number, types in enumerate(workers):
        fleet.join(f"w{number}", *types)
    fleet.publish("busy", "pdf")
    fleet.publish("job", "pdf")
    rows = {line[:12].strip(): line[12:] for line in affinity(valkey.url, "explain", "task-job").stdout.splitlines()}
    assert rows["wait"] == f"unknown: {says}"


def test_pending_lists_jobs_in_claim_order(valkey, fleet):
    fleet.join("one", "pdf")
    fleet.publish("busy", "pdf")
    fleet.publish("unserved", "drawing", priority=10)
    fleet.publish("second", "pdf", priority=8)
    fleet.publish("first", "pdf", priority=9)
    found = json.loads(affinity(valkey.url, "pending", "--json").stdout)
    assert [(each["job_id"], each["served"]) for each in found] == [
        ("first", True),
        ("second", True),
        ("unserved", False),
    ]
    lines = affinity(valkey.url, "pending", "pdf").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["1", "pdf", "9"], ["2", "pdf", "8"]]
    assert len(affinity(valkey.url, "pending", "--limit", "1").stdout.splitlines()) == 2


def test_pending_reports_types_without_pending_jobs(valkey, fleet):
    assert affinity(valkey.url, "pending").stdout == "nothing is pending\n"
    fleet.join("one", "pdf", "excel")
    lines = affinity(valkey.url, "pending", "pdf", "PDF", "excl", "drawing").stdout.splitlines()
    assert lines == [
        "nothing is pending of type 'pdf'",
        "nothing is pending of type 'PDF', which no live worker serves; did you mean 'pdf'?",
        "nothing is pending of type 'excl', which no live worker serves; did you mean 'excel'?",
        "nothing is pending of type 'drawing', which no live worker serves",
    ]
    assert json.loads(affinity(valkey.url, "pending", "--json").stdout) == []


def test_top_shows_the_fleet_until_interrupted(valkey, fleet):
    fleet.join("one", "pdf")
    fleet.publish("busy", "pdf")
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "top", "--interval", "0.1"]
    top = Process("top", command, {"BROKER_URL": valkey.url, "LEDGER": os.devnull})
    top.wait_for("one@host", 20)
    fleet.publish("seen-live", "pdf")
    top.wait_for("task-seen-live", 10)
    top.signal(2)
    assert top.wait(10) == 0
    assert "Traceback" not in top.log()
    assert len(affinity(valkey.url, "top", "--count", "1").stdout.splitlines()) > 4


def test_explain_works_from_python(load_app, valkey, redis_client, fleet):
    app = load_app(APP)
    result = app.send_task("any.task", queue="drawing")
    found = celery_affinity.explain(app, result.id)
    assert (found.state, found.type, found.task) == ("pending", "drawing", "any.task")
    assert found.waiting.rank == 1
