"""The lab over HTTP: traces in one directory, their replay, and what-if questions, which change nothing."""

import asyncio
import json
import os
import shutil
import threading
from dataclasses import replace

import pytest

from celery_affinity.errors import SettingError
from celery_affinity.lab import replay
from celery_affinity.lab.changes import read_changes
from celery_affinity.lab.scenario import fleet_of_members as fleet_of
from celery_affinity.lab.scenario import scenario_of
from celery_affinity.lab.trace import TracedWorker
from celery_affinity.lab.trace_file import write_trace
from celery_affinity.reports.json import as_json
from celery_affinity.web import lab_routes
from celery_affinity.web import traces as rooms
from examples.made_up_trace import make_trace

from .conftest import error_of

ADDED = {"add": ["[ocr]:2"]}


@pytest.fixture(scope="module")
def made():
    return replace(make_trace(300), recorded_at="2026-11-20T08:00:00+00:00")


@pytest.fixture
def directory(made, tmp_path):
    write_trace(made, tmp_path / "night.jsonl")
    return tmp_path


@pytest.fixture
def web(serve, directory):
    return serve(traces=directory)


def ask(web, question, name="night.jsonl"):
    return web("POST", f"/api/lab/traces/{name}/whatif", json=question)


def printed(found):
    return json.loads(json.dumps(as_json(found)))


# -- replies


def test_newest_trace_is_listed_first(web, directory, made):
    write_trace(made, directory / "later.jsonl")
    os.utime(directory / "later.jsonl", (2_000_000_000, 2_000_000_000))
    (directory / "broken.csv").write_bytes(b"\xff{")
    os.utime(directory / "broken.csv", (1, 1))
    (directory / "notes.txt").touch()
    (directory / "folder.jsonl").mkdir()
    found = web.get("/api/lab/traces").json()
    assert [each["name"] for each in found] == ["later.jsonl", "night.jsonl", "broken.csv"]
    assert [each["recorded_at"] for each in found] == [made.recorded_at, made.recorded_at, ""]
    assert found[0]["modified_at"] == "2033-05-18T03:33:20+00:00"
    assert found[1]["size_bytes"] == (directory / "night.jsonl").stat().st_size


def test_replay_equals_the_commands(web, made):
    found = web.get("/api/lab/traces/night.jsonl/replay").json()
    assert found["replay"] == printed(replay.replay(made))
    assert (found["jobs"], found["recorded_at"], found["limits"]) == (300, made.recorded_at, {})
    assert {tuple(each["types"]): each["slots"] for each in found["fleet"]} == {
        ("pdf",): 6,
        ("pdf", "xls"): 4,
        ("ocr", "pdf", "xls"): 4,
    }


def test_what_if_equals_the_commands(web, made):
    question = {
        "add": ["[ocr]:2"],
        "remove": ["w1@h"],
        "set": {"limits.type:pdf": "5", "age_weight": 20},
        "rate": {"pdf": 1.5},
        "priority": {"xls": 9},
    }
    scenario = scenario_of(made)
    changes = read_changes(
        scenario,
        settings=["limits.type:pdf=5", "age_weight=20"],
        add=["[ocr]:2"],
        remove=["w1@h"],
        rates=["pdf=1.5"],
        priorities=["xls=9"],
    )
    assert ask(web, question).json() == printed(replay.compare_waits(*replay.schedule_both(scenario, changes)))


def test_changed_file_is_read_again(web, directory):
    web.get("/api/lab/traces/night.jsonl/replay")
    write_trace(make_trace(20), directory / "night.jsonl")
    assert web.get("/api/lab/traces/night.jsonl/replay").json()["jobs"] == 20
    assert ask(web, ADDED).json()["before"]["all"]["jobs"] == 20


# -- access


def test_readers_may_ask_what_if_on_read_only_servers(serve, directory):
    web = serve(traces=directory, tokens={"r" * 16: "read"}, token="r" * 16, read_only=True)
    assert ask(web, ADDED).status_code == 200
    assert web("POST", "/api/lab/traces/night.jsonl/other", json={}).status_code == 403
    assert ask(serve(traces=directory, tokens={"r" * 16: "read"}), ADDED).status_code == 401


def test_page_of_another_site_may_not_compute(web):
    reply = web("POST", "/api/lab/traces/night.jsonl/whatif", json=ADDED, headers={"Origin": "http://evil.example"})
    assert reply.status_code == 403


# -- refused requests


def test_routes_without_a_directory_explain_how_to_record(serve):
    web = serve()
    replies = [web.get("/api/lab/traces"), web.get("/api/lab/traces/night.jsonl/replay"), ask(web, ADDED)]
    assert {each.status_code for each in replies} == {404}
    words = (
        "no directory of traces is given: record with celery affinity lab record --for 10m --output DIR/trace.jsonl, "
        "and start celery affinity web --traces DIR"
    )
    assert {error_of(each) for each in replies} == {words}


def test_invalid_directory_is_refused(serve, directory):
    with pytest.raises(SettingError, match="--traces must be a directory, got: "):
        serve(traces=directory / "night.jsonl")


@pytest.mark.parametrize(
    "name",
    ["none.jsonl", "%2e%2e%2fsecret.jsonl", "..%2Fsecret.jsonl", "%2Fetc%2Fpasswd", "folder.jsonl", ".hidden.jsonl"],
)
def test_only_listed_files_are_read(serve, directory, name):
    served = directory / "served"
    (served / "folder.jsonl").mkdir(parents=True)
    for path in (served / "inner.jsonl", served / ".hidden.jsonl", directory / "secret.jsonl"):
        shutil.copy(directory / "night.jsonl", path)
    web = serve(traces=served)
    assert web.get("/api/lab/traces/inner.jsonl/replay").status_code == 200
    assert web.get(f"/api/lab/traces/{name}/replay").status_code == 404
    assert ask(web, ADDED, name).status_code == 404


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({}, "give at least one of add, remove, set, rate and priority"),
        (
            {"add": ["ocr:2"]},
            "add must be types in brackets and a number of slots, such as '[pdf,xls]:2', got: 'ocr:2'",
        ),
        ({"add": ["[ocr]:9999", "[ocr]:2"]}, "add must add 10,000 slots at most, got: 10,001"),
        ({"add": "[ocr]:2"}, "add: Input should be a valid list, got: '[ocr]:2'"),
        ({"remove": ["w9@h"]}, "remove must be the name of a worker of the trace, got: 'w9@h'; did you mean "),
        ({"set": {"limits.type:pdf": "x"}}, "set limits.NAME=VALUE must be as in limits.type:pdf=5, got: "),
        ({"set": {"age_wait": 1}}, "set: unknown setting 'affinity_age_wait'"),
        ({"rate": {"pdf": 0}}, "rate must be TYPE=NUMBER with a number above 0, 100 at most, got: 'pdf=0.0'"),
        ({"rate": {"odf": 2}}, "rate must be a type with jobs in the trace, got: 'odf'; did you mean 'pdf'?"),
        ({"priority": {"pdf": 11}}, "priority must be TYPE=NUMBER with a whole number from 0 to 10, got: 'pdf=11'"),
        ({"limits": {}}, "limits: Extra inputs are not permitted, got: {}"),
    ],
)
def test_invalid_question_is_refused_with_the_accepted_values(web, question, words):
    reply = ask(web, question)
    assert (reply.status_code, error_of(reply)[: len(words)]) == (400, words)
    assert "\n" not in error_of(reply)


def test_invalid_trace_is_reported_without_its_path(web, directory):
    (directory / "bad.jsonl").write_text('{"row": "header"}\n')
    reply = web.get("/api/lab/traces/bad.jsonl/replay")
    words = "bad.jsonl: line 1: the schema must be 'celery-affinity-trace/2', got: None"
    assert (reply.status_code, error_of(reply)) == (409, words)


def test_question_with_too_many_jobs_is_refused(web, monkeypatch):
    monkeypatch.setattr(rooms, "MAX_JOBS", 300)
    assert ask(web, ADDED).status_code == 200
    reply = ask(web, {"rate": {"pdf": 2}})
    words = "night.jsonl at these rates has more than 300 jobs, the maximum of the web UI: use celery affinity lab"
    assert (reply.status_code, error_of(reply)) == (409, words)


def test_file_with_too_many_jobs_is_not_read(web, monkeypatch):
    monkeypatch.setattr(rooms, "MAX_JOBS", 299)
    monkeypatch.setattr(rooms.trace_file, "read_trace", None)
    reply = web.get("/api/lab/traces/night.jsonl/replay")
    assert (reply.status_code, error_of(reply).partition(",")[0]) == (409, "night.jsonl has more than 299 jobs")


def test_computation_ends_after_its_time_limit(web, monkeypatch):
    monkeypatch.setattr(rooms, "MAX_ANSWER_S", -1.0)
    reply = ask(web, ADDED)
    assert (reply.status_code, reply.headers["Retry-After"]) == (503, "1")
    assert "record for a shorter time" in error_of(reply)


def test_one_question_is_computed_at_a_time(web, monkeypatch):
    there, most, answer = [], [], lab_routes._answer

    def counted(*args):
        there.append(args)
        most.append(len(there))
        found = answer(*args)
        there.pop()
        return found

    monkeypatch.setattr(lab_routes, "_answer", counted)

    async def three():
        asked = (web.http.post("/api/lab/traces/night.jsonl/whatif", json=ADDED) for _ in range(3))
        return await asyncio.gather(*asked)

    assert [each.status_code for each in web.run(three())] == [200] * 3
    assert most == [1, 1, 1]


def test_list_does_not_wait_for_a_computation(web, monkeypatch):
    listed, answer = threading.Event(), lab_routes._answer

    def late(*args):
        assert listed.wait(30)
        return answer(*args)

    monkeypatch.setattr(lab_routes, "_answer", late)

    async def both():
        asked = asyncio.ensure_future(web.http.post("/api/lab/traces/night.jsonl/whatif", json=ADDED))
        found = await web.http.get("/api/lab/traces")
        listed.set()
        return found.status_code, (await asked).status_code

    assert web.run(both()) == (200, 200)


# -- the fleet in a trace


def test_slots_of_successive_workers_are_not_added_up():
    (members,) = fleet_of([TracedWorker("a@1", ("pdf",), 4, 0, 50), TracedWorker("a@2", ("pdf",), 4, 50)])
    assert (members.slots, members.workers, members.stays) == (4, {"a@1": 4, "a@2": 4}, False)
    (members,) = fleet_of([TracedWorker("b@1", ("xls", "pdf"), 4), TracedWorker("b@2", ("pdf", "xls"), 2)])
    assert (members.types, members.slots, members.stays) == (("pdf", "xls"), 6, True)
    found = fleet_of([TracedWorker("c", ("pdf",), 1, 0, 9), TracedWorker("c", ("xls",), 1, 9)])
    assert [each.stays for each in found] == [False, False]
