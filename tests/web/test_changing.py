"""Changes over HTTP."""

import pytest

from .conftest import error_of


def test_type_is_paused_and_resumed(fleet, web):
    fleet.join("worker", "a/b c")
    reply = web("POST", "/api/types/a%2Fb%20c/pause", json={"reason": "db migration", "for_s": 60})
    (pause,) = reply.json()["pauses"]
    assert reply.json()["warning"] is None
    assert (reply.status_code, pause["name"], pause["why"]) == (202, "a/b c", "db migration")
    assert pause["until"] - pause["since"] == pytest.approx(60)
    fleet.publish("job", "a/b c")
    assert fleet.jobs("worker") == []
    (found,) = web.get("/api/types").json()
    assert found["paused"]
    assert web("POST", "/api/types/a%2Fb%20c/resume").status_code == 202
    assert fleet.jobs("worker") == ["job"]
    again = web("POST", "/api/types/a%2Fb%20c/resume")
    assert (again.status_code, error_of(again)) == (409, "there is no pause of type 'a/b c'")


def test_pause_of_an_unserved_type_returns_a_warning(fleet, web):
    fleet.join("worker", "pdf")
    for path, body in (("/api/types/pfd/pause", {}), ("/api/pauses", {"kind": "type", "name": "pfd"})):
        reply = web("POST", path, json=body).json()
        assert [each["name"] for each in reply["pauses"]] == ["pfd"]
        assert reply["warning"] == "no live worker serves type 'pfd'; did you mean 'pdf'?"


@pytest.mark.parametrize("body", [{"for_s": 0}, {"for_s": 1e30}, {"reason": "x" * 1001}, {"why": ""}, [], "x"])
def test_invalid_pause_is_refused(web, body):
    assert web("POST", "/api/types/pdf/pause", json=body).status_code == 400
    assert web("POST", "/api/types/%20/pause").status_code == 400


def test_cancelled_job_is_returned_with_its_former_state(fleet, web):
    fleet.publish("job", "pdf")
    reply = web("DELETE", "/api/jobs/task-job")
    assert (reply.status_code, reply.json()["found"]) == (202, "pending")
    assert web.get("/api/jobs/task-job").json()["state"] == "revoked"
    again = web("DELETE", "/api/jobs/task-job")
    assert (again.status_code, error_of(again)) == (409, "task-job: it has ended: revoked")
    assert web("DELETE", "/api/jobs/nobody").status_code == 404
    fleet.join("worker", "pdf")
    fleet.publish("held", "pdf")
    fleet.inbox("worker")
    assert web("DELETE", "/api/jobs/task-held").status_code == 409
    assert web("DELETE", "/api/jobs/task-held?terminate=1").status_code == 202


def test_moved_job_is_returned_with_its_new_place(fleet, web):
    fleet.publish("job", "pfd", priority=1)
    reply = web("PATCH", "/api/jobs/task-job", json={"type": "pdf", "priority": 9, "mode": "on_demand"})
    words = "moved: type 'pdf', priority 9, on demand; no live worker serves type 'pdf'"
    assert (reply.status_code, reply.json()["note"]) == (202, words)
    found = web.get("/api/jobs/task-job").json()
    assert (found["type"], found["priority"], found["mode"]) == ("pdf", 9, "on_demand")
    assert web("PATCH", "/api/jobs/task-job", json={"mode": "queued"}).status_code == 202
    fleet.join("worker", "pdf")
    held = web("PATCH", "/api/jobs/task-job", json={"priority": 1})
    assert (held.status_code, "has it already" in error_of(held)) == (409, True)
    assert web("PATCH", "/api/jobs/nobody", json={"priority": 1}).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 422, "give the jobs a new type, priority or mode"),
        ({"priority": 11}, 422, "priority must be a whole number from 0 to 10, got: 11"),
        ({"type": "a,b"}, 422, "type must be the name of a queue"),
        ({"mode": "soon"}, 400, "mode: Input should be 'queued' or 'on_demand', got: 'soon'"),
        ({"priority": "9"}, 400, "priority: "),
        ({"prio": 9}, 400, "prio: "),
    ],
)
def test_invalid_move_is_refused_with_the_accepted_values(fleet, web, body, status, words):
    fleet.publish("job", "pdf")
    reply = web("PATCH", "/api/jobs/task-job", json=body)
    assert (reply.status_code, words in error_of(reply)) == (status, True)


def test_dead_letter_is_retried_as_job_or_as_letter(fleet, web):
    for call in ("/api/jobs/task-job/retry", "/api/dead/task-job/replay"):
        fleet.bury("job")
        assert web("POST", call).status_code == 202
        (claim,) = fleet.inbox("worker")
        fleet.end("worker", claim)
        fleet.scheduler.client.flushall()
    assert web("POST", "/api/jobs/nobody/retry").status_code == 404
    fleet.publish("job", "pdf")
    assert web("POST", "/api/jobs/task-job/retry").status_code == 409


def test_kept_failed_job_is_retried(fleet, web):
    fleet.join("worker", "pdf", settings={"keep": 3600})
    fleet.publish("job", "pdf")
    fleet.end("worker", *fleet.inbox("worker"), outcome="failed ValueError", inline=False)
    for path, name in (("/api/jobs?state=failed", "jobs"), ("/api/ended", "failed")):
        (listed,) = web("GET", path).json()[name]
        assert (listed["state"], listed["replayable"]) == ("failed", True)
    assert web("POST", "/api/jobs/task-job/retry").json()["note"] == "published again"
    assert fleet.jobs("worker") == ["job"]
    assert web("POST", "/api/jobs/task-job/retry").status_code == 409


def test_ended_jobs_are_read_once_for_all_viewers(fleet, web):
    fleet.join("worker", "pdf", settings={"keep": 3600})
    for number, path in enumerate(("/api/ended", "/api/ended", "/api/ended?fresh=1", "/api/ended")):
        fleet.publish(f"job{number}", "pdf")
        fleet.end("worker", *fleet.inbox("worker"), outcome="failed ValueError", inline=False)
        reply = web("GET", path).json()
        assert reply["tasks"][0]["runs"] == len(reply["failed"]) == (1 if number < 2 else 3)


def test_dead_letter_is_dropped(fleet, web):
    fleet.bury("job")
    assert web("DELETE", "/api/dead/task-job").json() == {"dropped": 1}
    for call in (("DELETE", "/api/dead/task-job"), ("POST", "/api/dead/task-job/replay")):
        assert web(*call).status_code == 404


def test_settings_are_changed_and_reset(fleet, web):
    (changed,) = web("PATCH", "/api/settings", json={"affinity_age_weight": 17}).json()
    assert (changed["name"], changed["value"], changed["changed_at_run_time"]) == ("age_weight", 17, True)
    reply = web("PATCH", "/api/settings", json={"age_weight": None, "limits": "type:pdf=3 rate:mail:*=9/m"})
    assert {each["name"]: each["value"] for each in reply.json()} == {
        "age_weight": 16,
        "limits": "type:pdf=3 rate:mail:*=9/m",
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"age_weight": 0},
            "affinity_age_weight must be a number of points a second, above 0, up to 1,000,000, got: '0'",
        ),
        ({"age_weigth": 1}, "unknown setting 'affinity_age_weigth'; did you mean 'affinity_age_weight'?"),
        ({"guard": True}, "guard must be a text, a number or null, got: 'True'"),
        ({}, "name at least one setting"),
    ],
)
def test_invalid_setting_is_refused_with_the_accepted_values(fleet, web, changes, words):
    reply = web("PATCH", "/api/settings", json=changes)
    assert (reply.status_code, error_of(reply)) == (400, words)


def test_command_to_a_missing_worker_is_not_found(fleet, web):
    reply = web("POST", "/api/workers/nobody@host/drain")
    assert (reply.status_code, error_of(reply)) == (404, "no live worker is named 'nobody@host'")


def test_quota_is_changed_per_field_and_removed(fleet, web):
    def quota_of(name):
        return next(each for each in web.get("/api/tenants").json() if each["name"] == name)

    assert web("PATCH", "/api/tenants/acme", json={"max": 10}).json() == {"max": 10, "min": 0, "weight": 1}
    assert web("PATCH", "/api/tenants/acme", json={"weight": 3, "min": 2}).json() == {"max": 10, "min": 2, "weight": 3}
    assert web("PATCH", "/api/tenants/acme", json={"max": None}).json() == {"max": None, "min": 2, "weight": 3}
    assert (quota_of("acme")["minimum"], quota_of("acme")["limit"]) == (2, None)
    assert [each["name"] for each in web("DELETE", "/api/tenants/acme").json()] == []
    assert web("DELETE", "/api/tenants/acme").status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "give at least one of max, min and weight"),
        ({"max": "10"}, 400, "max"),
        ({"maximum": 10}, 400, "maximum"),
        ({"weight": 0}, 400, "weight of a tenant must be a whole number from 1 to"),
        ({"max": 2, "min": 3}, 400, "min of a tenant must be a whole number up to its max, 2, got: 3"),
    ],
)
def test_invalid_quota_is_refused_and_changes_nothing(fleet, web, body, status, said):
    reply = web("PATCH", "/api/tenants/acme", json=body)
    assert (reply.status_code, said in reply.json()["error"]["message"]) == (status, True), reply.text
    assert web.get("/api/tenants").json() == []
