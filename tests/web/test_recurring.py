"""Recurring calls over HTTP."""

import json

import pytest

from celery_affinity import recur
from celery_affinity.admin import job_values
from celery_affinity.reports.json import as_json
from celery_affinity.reports.recurring import recurring_rows
from celery_affinity.settings.table import Settings


@pytest.fixture
def app(load_app):
    return load_app("tests.support.apps.recurring")


def test_recurring_call_is_listed_fired_paused_and_removed(fleet, web, app):
    recur("plan/a", app.tasks["reroute"].s("HH"), stale_after=300)
    (found,) = web.get("/api/recurring").json()
    assert (found["name"], found["task"], found["is_suspended"]) == ("plan/a", "reroute", False)
    (row,) = json.loads(json.dumps(as_json(recurring_rows(fleet.scheduler.reader))))
    assert set(found) == set(row)
    assert web("POST", "/api/recurring/plan%2Fa/fire").status_code == 202
    (job,) = web.get("/api/jobs").json()["jobs"]
    assert (job["task"], job["recurring"], job["merge_key"]) == ("reroute", "plan/a", "HH")
    assert web("POST", "/api/recurring/plan%2Fa/pause").json()["is_suspended"]
    assert not web("POST", "/api/recurring/plan%2Fa/resume").json()["is_suspended"]
    assert web("DELETE", "/api/recurring/plan%2Fa").json()["removed"] == "plan/a"
    assert web.get("/api/recurring").json() == []


def test_signature_of_a_call_requires_the_values_right(fleet, serve, app, monkeypatch):
    recur("plan", app.tasks["reroute"].s("HH"), stale_after=300)
    tokens = {role * 4: role for role in ("read", "submit", "admin")}
    for to, sees in (("submit", ("submit", "admin")), ("nobody", ())):
        monkeypatch.setattr(job_values, "settings_of", lambda _, to=to: Settings(show_values_to=to))
        for role in tokens.values():
            (found,) = serve(tokens=tokens, token=role * 4).get("/api/recurring").json()
            assert (found["signature"] != "") == (role in sees)
        changed = serve(tokens=tokens, token="admin" * 4)("POST", "/api/recurring/plan/resume").json()
        assert (changed["signature"] != "") == ("admin" in sees)


@pytest.mark.parametrize("call", [("POST", "plam/fire"), ("POST", "plam/pause"), ("DELETE", "x")])
def test_unknown_name_is_not_found(fleet, web, app, call):
    recur("plan", app.tasks["reroute"].s("HH"), stale_after=300)
    assert web(call[0], f"/api/recurring/{call[1]}").status_code == 404
