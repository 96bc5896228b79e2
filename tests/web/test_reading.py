"""HTTP replies contain the same data as the commands."""

import json

import pytest

from celery_affinity.publishing.app_config import settings_of
from celery_affinity.reports import dead_letters, key_usage
from celery_affinity.reports.explain import explain
from celery_affinity.reports.jobs import get_jobs
from celery_affinity.reports.json import as_json
from celery_affinity.reports.type_limits import pauses_in_force
from celery_affinity.scheduler import runtime_settings

from ..support.command import affinity
from ..support.messages import wire


@pytest.fixture
def fleet(fleet):
    fleet.join("worker", "pdf", "excel", slots=1)
    fleet.bury("buried", "mail")
    for name in ("one", "two", "three"):
        fleet.publish(name, "pdf")
    fleet.publish("keyed!", "pdf", rules="key=city%3AHH limit=1")
    fleet.publish("later", "pdf", delay_s=60)
    return fleet


def without_times(found):
    if isinstance(found, dict):
        return {name: without_times(each) for name, each in found.items() if not name.endswith(("_s", "total", "age"))}
    return [without_times(each) for each in found] if isinstance(found, list) else found


@pytest.mark.parametrize(
    ("path", "words"),
    [("/api/status", ["status"]), ("/api/dead/task-buried", ["dead", "show", "task-buried"])],
)
def test_http_and_commands_return_the_same_lists(valkey, fleet, web, path, words):
    printed = json.loads(affinity(valkey.url, *words, "--json").stdout)
    assert without_times(web.get(path).json()) == without_times(printed)


def test_http_and_commands_return_the_same_reports(fleet, web, app):
    scheduler, reader = fleet.scheduler, fleet.scheduler.reader
    reports = {
        "/api/settings": runtime_settings.read_settings(scheduler, settings_of(app)),
        "/api/keys": key_usage.find_keys(reader, "*", 100),
        "/api/keys/city:HH": key_usage.show_key(reader, "city:HH"),
        "/api/dead": dead_letters.find_letters(reader, dead_letters.LetterFilter()),
        "/api/pauses": pauses_in_force(reader),
        "/api/jobs/task-two": get_jobs(reader, ["task-two"])[0],
    }
    for path, report in reports.items():
        assert without_times(web.get(path).json()) == without_times(json.loads(json.dumps(as_json(report)))), path


def test_message_in_an_unserved_list_is_explained(fleet, web, redis_client):
    redis_client.lpush("celery", wire("lost", task="shop.render"))
    found = web.get("/api/jobs/lost?explain=1")
    assert found.status_code == 404
    assert found.json()["explanation"]["in_list"]["list"] == "celery"
    assert "explanation" not in web.get("/api/jobs/nowhere?explain=1").json()
    (row,) = web.get("/api/status").json()["unserved_lists"]
    assert (row["queue"], row["messages"], row["oldest_task"]) == ("celery", 1, "shop.render")


def test_job_includes_its_explanation(fleet, web):
    found = web.get("/api/jobs/task-two?explain=1").json()
    explained = json.loads(json.dumps(as_json(explain(fleet.scheduler.reader, "task-two"))))
    assert without_times(found.pop("explanation")) == without_times(explained)
    assert found == web.get("/api/jobs/task-two").json()


def test_types_and_workers_equal_those_in_the_status(fleet, web):
    status = web.get("/api/status").json()
    assert without_times(web.get("/api/types").json()) == without_times(status["types"])
    assert without_times(web.get("/api/workers").json()) == without_times(status["workers"])
    assert without_times(web.get("/api/tenants").json()) == without_times(status["tenants"])
    assert web.get("/api/reserves").json() == []


def test_worker_details_have_hints_recent_and_unfinished_jobs(fleet, web, redis_client):
    fleet.join("gpu", "video", settings={"keep": 3600})
    fleet.publish("first~", "video", rules="near=model%3Aa")
    fleet.end("gpu", *fleet.inbox("gpu"))
    fleet.publish("second", "video")
    (claim,) = fleet.inbox("gpu")
    fleet.end("gpu", claim, outcome="requeued 0")
    found = web.get("/api/workers/gpu@host/details").json()
    assert [row["types"] for row in found["rows"]] == [["video"]]
    assert [*found["hints"]] == ["model:a"]
    assert [job["id"] for job in found["recent"]] == ["task-first~"]
    assert found["process"] is None
    assert web.get("/api/workers/nobody@host/details").status_code == 404


def test_jobs_are_returned_in_pages(fleet, web):
    found, path = [], "/api/jobs?limit=2"
    while path:
        page = web.get(path).json()
        found += [each["id"] for each in page["jobs"]]
        path = page["cursor"] and f"/api/jobs?limit=2&cursor={page['cursor']}"
    assert sorted(found) == sorted(f"task-{job}" for job in ("buried", "one", "two", "three", "keyed!", "later"))
    assert [each["id"] for each in web.get("/api/jobs?state=scheduled").json()["jobs"]] == ["task-later"]


def test_unknown_id_is_not_found(fleet, web):
    reply = web.get("/api/jobs/nobody")
    assert (reply.status_code, reply.json()["state"], reply.json()["source"]) == (404, "unknown", None)
    assert web.get("/api/keys/nobody").status_code == 404
    assert web.get("/api/dead/nobody").status_code == 404


@pytest.mark.parametrize(
    "path",
    ["/api/jobs?state=done", "/api/jobs?limit=0", "/api/jobs?cursor=x", "/api/dead?reason=x", "/api/jobs/x?wait=99"],
)
def test_invalid_query_is_refused_with_the_accepted_values(web, path):
    reply = web.get(path)
    assert reply.status_code == 400
    assert "got: " in reply.json()["error"]["message"]


def test_metrics_and_probes_are_served(fleet, web):
    text = web.get("/metrics").text
    assert "celery_affinity_up 1" in text
    assert 'celery_affinity_pending_jobs{type="pdf",mode="queued"}' in text
    assert [web.get(path).json() for path in ("/healthz", "/readyz")] == [{"status": "ok"}] * 2
    assert "/api/jobs/{id}" in web.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize("wait", ["nan", "inf", "-1", "0"])
@pytest.mark.parametrize("path", ["/api/scale", "/api/scale/pdf"])
def test_invalid_target_wait_is_refused_with_the_range(web, path, wait):
    reply = web.get(f"{path}?target_wait={wait}")
    said = "target_wait must be a number of seconds above 0, 1,000,000,000 at most, got: "
    assert (reply.status_code, reply.json()["error"]["message"].startswith(said)) == (400, True)
