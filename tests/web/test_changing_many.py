"""One request changes all matching jobs. An unknown name in a query is refused."""

import pytest

from celery_affinity.web import job_routes

from ..support.messages import wire
from .conftest import error_of


@pytest.fixture
def customers(fleet):
    """Five jobs of one customer and three jobs of another, by stamp and by key ("!" marks a job with rules)."""
    for number in range(8):
        who = "acme" if number < 5 else "globex"
        rules = f"key=customer%3A{who} limit=9"
        fleet.scheduler.publish(*fleet.made([f"{who}{number}!"], "pdf", stamps=[f"customer:{who}"], rules=rules))
    return fleet


def states(web):
    return {job["id"]: job["state"] for job in web.get("/api/jobs").json()["jobs"]}


@pytest.mark.parametrize("which", [{"stamp": "customer=acme"}, {"key": "customer:acme"}])
def test_one_request_cancels_all_jobs_of_a_customer(customers, web, which):
    asked = web("DELETE", "/api/jobs", params={**which, "dry_run": True})
    assert (asked.status_code, asked.json()["found"], asked.json()["done"]) == (200, 5, 0)
    assert len(states(web)) == 8
    reply = web("DELETE", "/api/jobs", params=which)
    assert (reply.status_code, reply.json()["done"], reply.json()["more"]) == (202, 5, False)
    assert {each for each, state in states(web).items() if state == "pending"} == {
        f"task-globex{n}!" for n in (5, 6, 7)
    }


def test_one_request_moves_all_matching_jobs(customers, web):
    reply = web("PATCH", "/api/jobs?stamp=customer%3Dacme", json={"type": "slow", "priority": 2})
    assert (reply.status_code, reply.json()["done"]) == (202, 5)
    assert reply.json()["warning"] == "no live worker serves type 'slow'"
    found = web.get("/api/jobs?type=slow").json()["jobs"]
    assert sorted((job["id"], job["priority"]) for job in found) == [(f"task-acme{n}!", 2) for n in range(5)]
    assert web("PATCH", "/api/jobs?type=slow", json={"priority": 11}).status_code == 422
    assert web("PATCH", "/api/jobs?type=slow&state=running", json={"priority": 1}).status_code == 400


def test_bulk_change_stops_at_its_limit_and_reports_more(customers, web, monkeypatch):
    monkeypatch.setattr(job_routes, "_MAX_BULK_JOBS", 3)
    replies = [web("DELETE", "/api/jobs?type=pdf").json() for _ in range(3)]
    assert [(each["done"], each["more"]) for each in replies] == [(3, True), (3, True), (2, False)]


def test_bulk_change_of_too_many_rows_suggests_narrower_filters(customers, web, monkeypatch):
    monkeypatch.setattr(job_routes, "_MAX_PAGES", 0)
    reply = web("DELETE", "/api/jobs?task=nobody.*")
    assert (reply.status_code, "name the type" in error_of(reply)) == (409, True)


def test_running_job_is_cancelled_only_with_terminate(customers, web):
    customers.join("worker", "pdf")
    customers.inbox("worker")
    assert web("DELETE", "/api/jobs?type=pdf&dry_run=1").json()["found"] == 7
    assert web("DELETE", "/api/jobs?type=pdf&dry_run=1&terminate=1").json()["found"] == 8


@pytest.mark.parametrize("method", ["DELETE", "PATCH"])
@pytest.mark.parametrize(
    "query",
    ["", "dry_run=1", "stmp=customer%3Dacme", "state=dead", "type=a%2Cb", "older_than=5", "older_than_s=0", "stamp=x"],
)
def test_bulk_change_requires_a_valid_filter(customers, web, method, query):
    assert web(method, f"/api/jobs?{query}", json={"priority": 9}).status_code == 400
    assert set(states(web).values()) == {"pending"}
    assert {job["priority"] for job in web.get("/api/jobs").json()["jobs"]} == {0}


def test_unknown_query_name_is_refused_with_the_known_names(fleet, web):
    reply = web.get("/api/jobs?stat=dead")
    words = "unknown name after the '?': 'stat'; did you mean 'state'? accepted: state, type, task, limit, cursor"
    assert (reply.status_code, error_of(reply).startswith(words)) == (400, True)
    assert web.get("/api/status?x=1").status_code == 400
    assert web.get("/healthz?x=1").status_code == 200
    assert web.get("/api/jobs?older_than_s=5&key=a&limit=3").status_code == 200


def test_keys_and_all_types_are_paused_and_resumed(fleet, web):
    reply = web("POST", "/api/pauses", json={"kind": "key", "name": "customer:acme", "reason": "asked", "for_s": 60})
    (pause,) = reply.json()["pauses"]
    assert (reply.status_code, pause["name"], pause["why"]) == (202, "customer:acme", "asked")
    reply = web("POST", "/api/pauses", json={"kind": "all"}).json()
    assert ([each["kind"] for each in reply["pauses"]], reply["warning"]) == (["key", "all"], None)
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    assert fleet.jobs("worker") == []
    assert web("DELETE", "/api/pauses?kind=all").status_code == 202
    assert fleet.jobs("worker") == ["job"]
    assert web("DELETE", "/api/pauses?kind=key&name=customer:acme").json() == []
    again = web("DELETE", "/api/pauses?kind=all")
    assert (again.status_code, error_of(again)) == (409, "there is no pause of all types")


@pytest.mark.parametrize(
    "body", [{}, {"kind": "key"}, {"kind": "all", "name": "pdf"}, {"kind": "type", "name": "a,b"}, {"kind": "queue"}]
)
def test_invalid_pause_target_is_refused(fleet, web, body):
    assert web("POST", "/api/pauses", json=body).status_code == 400
    assert web.get("/api/pauses").json() == []


def test_calls_of_a_customer_are_cancelled_by_argument(fleet, web):
    for number, customer in enumerate(["acme", "globex", "acme"]):
        fleet.publish(f"job{number}", "pdf", message=wire(f"task-job{number}", args=(customer,)))
    which = {"argument": "args[0]=acme", "newer_than_s": 3600}
    assert {job["id"] for job in web.get("/api/jobs", params=which).json()["jobs"]} == {"task-job0", "task-job2"}
    assert web("PATCH", "/api/jobs", params=which, json={"priority": 3}).json()["done"] == 2
    assert web("DELETE", "/api/jobs", params=which).json()["done"] == 2
    assert states(web) == {"task-job1": "pending"}
    assert web("DELETE", "/api/jobs?argument=acme").status_code == 400
