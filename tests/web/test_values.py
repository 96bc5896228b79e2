"""Arguments, results and tracebacks over HTTP: where they are, and that a role without the right gets them nowhere."""

import json

import pytest

from celery_affinity.operate import values
from celery_affinity.rules.settings import Settings

from ..support.apps import APP
from ..support.openapi import description

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery

ROLES = ("read", "submit", "admin")
TOKENS = {role * 4: role for role in ROLES}

#: Stands in arguments, a result and a traceback, and nowhere else.
SECRET = "s3cr3t-value"


@pytest.fixture
def shown_to(monkeypatch):
    def set_to(who):
        monkeypatch.setattr(values, "settings_of", lambda _: Settings(show_values_to=who))

    return set_to


@pytest.fixture
def as_role(serve):
    return {role: serve(tokens=TOKENS, token=role * 4) for role in ROLES}


@pytest.fixture
def fleet(fleet, app):
    """Jobs that have the secret in all places that there are."""
    message = json.dumps({"headers": {"argsrepr": f"('{SECRET}',)", "kwargsrepr": f"{{'to': '{SECRET}'}}"}})
    fleet.bury("buried", "mail")
    fleet.scheduler.client.set(fleet.scheduler.keys.key("message", "buried"), message)
    fleet.publish("waits", "pdf", message=message)
    app.backend.store_result("task-waits", ValueError(SECRET), "RETRY", traceback=f"in {SECRET}")
    app.backend.store_result("ended", SECRET, "SUCCESS")
    app.tasks[f"{APP}.pdf"].apply_async((SECRET,), task_id="called").forget()
    return fleet


def paths():
    """Return every path that can be read, for each id that there is; with the switch that asks for more."""
    found = []
    for path, methods in description()["paths"].items():
        if "get" not in methods or path == "/api/events":
            continue
        places = ["task-buried", "task-waits", "ended", "called"] if "{id}" in path else ["x"]
        for place in places:
            at = path.replace("{id}", place)
            at = at if "{" not in at else at.partition("{")[0] + place
            found += [at, f"{at}?explain=1"] if at.startswith("/api/jobs/") else [at]
    return found


def test_the_result_of_a_job_comes_with_it(fleet, web):
    found = web.get("/api/jobs/ended?values=1").json()
    assert (found["state"], found["values"]["status"], found["values"]["result"]) == ("done", "SUCCESS", SECRET)
    assert "values" not in web.get("/api/jobs/ended").json()
    found = web.get("/api/jobs/task-waits?values=1&explain=1").json()
    assert found["values"]["traceback"] == f"in {SECRET}"
    assert found["values"]["args"] == f"('{SECRET}',)"
    assert found["explanation"]["state"] == "pending"
    unknown = web.get("/api/jobs/nobody?values=1")
    assert (unknown.status_code, unknown.json()["values"]["status"]) == (404, None)


@pytest.mark.parametrize("to", ["read", "submit", "admin", "nobody"])
def test_a_role_that_does_not_see_values_gets_them_from_no_path(fleet, as_role, shown_to, to):
    shown_to(to)
    for role, web in as_role.items():
        sees = to != "nobody" and ROLES.index(role) >= ROLES.index(to)
        texts = [web.get(path).text for path in paths()]
        asked = web.get("/api/jobs/called?values=1")
        found = web.get(f"/api/jobs?argument=args[0]={SECRET}")
        assert web.get("/api/me").json()["sees_values"] == sees
        if sees:
            assert SECRET in asked.json()["values"]["args"]
            assert [each["id"] for each in found.json()["jobs"]] == ["called"]
            assert sum(SECRET in text for text in texts) == 1, "that of the dead letter"
        else:
            assert (asked.status_code, found.status_code) == (403, 403), "nor can they be guessed"
            assert f"shown to {to} (affinity_show_values_to), not to {role}" in asked.json()["error"]["message"]
            assert not [text for text in texts if SECRET in text]


def test_who_may_only_read_a_server_sees_what_its_token_sees(fleet, serve, shown_to):
    shown_to("admin")
    admin = serve(tokens=TOKENS, token="admin" * 4, read_only=True)
    assert admin.get("/api/jobs/ended?values=1").json()["values"]["result"] == SECRET
    assert admin.get("/api/me").json() == {"app": "typed", "role": "read", "sees_values": True}


def test_jobs_are_changed_by_an_argument_only_by_who_sees_it(fleet, as_role, shown_to):
    shown_to("nobody")
    for method, body in (("DELETE", None), ("PATCH", {"priority": 1})):
        reply = as_role["admin"](method, "/api/jobs?dry_run=1&argument=args[0]=x", json=body)
        assert reply.status_code == 403
