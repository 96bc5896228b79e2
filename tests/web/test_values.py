"""Arguments, results and tracebacks over HTTP: the paths that return them, and roles that never get them."""

import json

import pytest

from celery_affinity.admin import job_values
from celery_affinity.cli import explain_text
from celery_affinity.schema.untrusted import MAX_NESTED
from celery_affinity.settings.table import Settings

from ..support.apps import APP
from ..support.openapi import description

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery calls it

ROLES = ("read", "submit", "admin")
TOKENS = {role * 4: role for role in ROLES}

#: Part of arguments, a result and a traceback, and of nothing else.
SECRET = "s3cr3t-value"


@pytest.fixture
def shown_to(monkeypatch):
    def set_to(who):
        monkeypatch.setattr(job_values, "settings_of", lambda _: Settings(show_values_to=who))

    return set_to


@pytest.fixture
def as_role(serve):
    return {role: serve(tokens=TOKENS, token=role * 4) for role in ROLES}


@pytest.fixture
def fleet(fleet, app):
    """Jobs that have the secret in all possible places."""
    message = json.dumps({"headers": {"argsrepr": f"('{SECRET}',)", "kwargsrepr": f"{{'to': '{SECRET}'}}"}})
    fleet.bury("buried", "mail")
    fleet.scheduler.client.set(fleet.scheduler.keys.key("message", "buried"), message)
    fleet.publish("waits", "pdf", message=message)
    app.backend.store_result("task-waits", ValueError(SECRET), "RETRY", traceback=f"in {SECRET}")
    app.backend.store_result("ended", SECRET, "SUCCESS")
    app.tasks[f"{APP}.pdf"].apply_async((SECRET,), task_id="called").forget()
    return fleet


def paths():
    """Return every readable path for each existing id, with the option that adds values."""
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


def test_job_includes_its_result(fleet, web):
    found = web.get("/api/jobs/ended?values=1").json()
    assert (found["state"], found["values"]["status"], found["values"]["result"]) == ("done", "SUCCESS", SECRET)
    assert "values" not in web.get("/api/jobs/ended").json()
    found = web.get("/api/jobs/task-waits?values=1&explain=1").json()
    assert found["values"]["traceback"] == f"in {SECRET}"
    assert found["values"]["args"] == f"('{SECRET}',)"
    assert found["explanation"]["state"] == "pending"
    unknown = web.get("/api/jobs/nobody?values=1")
    assert (unknown.status_code, unknown.json()["values"]["status"]) == (404, None)


READABLE = {
    ("('a.pdf', 3)", "{'customer': 'acme'}"): {"args[0]": "a.pdf", "args[1]": "3", "customer": "acme"},
    ("()", "{}"): {},
    ("<hidden>", "{'a': " + "[" * 300): {"args": "<hidden>", "kwargs": "{'a': " + "[" * 194},
    ("('x', ...", "{'a': '\\ud800'}"): {"args": "('x', ...", "a": "?"},
    ("(b'x', ['y'])", "{'\\d': 1}"): {"args[0]": "b'x'", "args[1]": "['y']", "kwargs": "{'\\d': 1}"},
    (7, None): {},
    ("(" * 3000, "1"): {"args": "(" * 200, "kwargs": "1"},
}


def test_list_includes_arguments_by_name(fleet, web):
    for number, (args, kwargs) in enumerate(READABLE):
        headers = {"argsrepr": args, "kwargsrepr": kwargs}
        fleet.publish(f"job{number}", "pdf", message=json.dumps({"headers": headers}))
    fleet.publish("none", "pdf", message="no JSON")
    fleet.publish("long", "pdf", message="x" * 70_000)
    assert "arguments" not in web.get("/api/jobs?type=pdf").json()
    found = web.get("/api/jobs?type=pdf&arguments=1").json()["arguments"]
    assert [found[f"job{number}"] for number in range(len(READABLE))] == list(READABLE.values())
    assert (found["none"], found["long"]) == ({}, {"arguments": "a message of 70,000 bytes"})


@pytest.mark.parametrize("to", ["read", "submit", "admin", "nobody"])
def test_role_without_values_gets_them_from_no_path(fleet, as_role, shown_to, to):
    shown_to(to)
    for role, web in as_role.items():
        sees = to != "nobody" and ROLES.index(role) >= ROLES.index(to)
        texts = [web.get(path).text for path in paths()]
        asked = web.get("/api/jobs/called?values=1")
        found = web.get(f"/api/jobs?argument=args[0]={SECRET}")
        listed = web.get("/api/jobs?arguments=1")
        assert web.get("/api/me").json()["sees_values"] == sees
        if sees:
            assert SECRET in asked.json()["values"]["args"]
            assert listed.json()["arguments"]["waits"] == {"args[0]": SECRET, "to": SECRET}
            assert [each["id"] for each in found.json()["jobs"]] == ["called"]
            assert sum(SECRET in text for text in texts) == 1, "that of the dead letter"
        else:
            assert (asked.status_code, found.status_code) == (403, 403), "nor can they be guessed"
            assert listed.status_code == 403
            assert f"shown to {to} (affinity_show_values_to), not to {role}" in asked.json()["error"]["message"]
            assert not [text for text in texts if SECRET in text]


def test_read_only_server_shows_the_values_of_the_token(fleet, serve, shown_to):
    shown_to("admin")
    admin = serve(tokens=TOKENS, token="admin" * 4, read_only=True)
    assert admin.get("/api/jobs/ended?values=1").json()["values"]["result"] == SECRET
    assert admin.get("/api/me").json() == {"app": "typed", "role": "read", "sees_values": True}


def test_change_by_argument_requires_the_values_right(fleet, as_role, shown_to):
    shown_to("nobody")
    for method, body in (("DELETE", None), ("PATCH", {"priority": 1})):
        reply = as_role["admin"](method, "/api/jobs?dry_run=1&argument=args[0]=x", json=body)
        assert reply.status_code == 403


def nested(depth, kind):
    found = "bottom"
    for number in range(depth):
        found = [found] if kind == "list" or (kind == "both" and number % 2) else {"a": found}
    return found


def test_deeply_nested_results_get_replies_with_notes(app, serve, caplog):
    """Celery stores JSON of 700 levels, but Python writes it only on a shallow call stack."""
    web, wrong = serve(), {}
    depths = {"list": (MAX_NESTED, MAX_NESTED + 1, 700), "mapping": (MAX_NESTED, 700), "both": (900,)}
    for kind, depth in ((kind, depth) for kind, of_kind in depths.items() for depth in of_kind):
        value = nested(depth, kind)
        task_id = f"{kind}-{depth}"  # Celery does not overwrite a success
        app.backend.store_result(task_id, value, "SUCCESS")
        reply = web.get(f"/api/jobs/{task_id}?values=1")
        found = reply.json().get("values", {})
        is_whole = found.get("result") == value and found["note"] is None
        is_noted = "nested more than 100 levels deep" in str(found.get("note")) and isinstance(found["result"], str)
        words = explain_text.values_text(job_values.with_result(app, task_id, job_values.JobValues()))
        if reply.status_code != 200 or not (is_whole if depth <= MAX_NESTED else is_noted) or "result" not in words:
            wrong[kind, depth] = reply.status_code, reply.text[:200]
    assert not wrong
    assert "Traceback" not in caplog.text


def test_errors_and_arguments_of_any_depth_get_a_reply(serve, monkeypatch):
    web, wrong, loop = serve(), {}, []
    loop.append(loop)
    for depth in (300, 900, 2_000):
        for name, meta in {
            "error": {"status": "FAILURE", "result": ValueError(nested(depth, "list"))},
            "arguments": {"status": "SUCCESS", "result": 1, "args": nested(depth, "list"), "kwargs": {"a": 1}},
            "no JSON": {"status": "SUCCESS", "result": {1, 2}},
            "itself": {"status": "SUCCESS", "result": loop},
        }.items():
            monkeypatch.setattr(job_values, "result_meta", lambda *_, meta=meta: meta)
            for path in ("/api/jobs/deep?values=1", "/api/jobs/deep"):
                reply = web.get(path)
                if reply.status_code != 200:
                    wrong[name, depth, path] = reply.status_code, reply.text[:200]
    assert not wrong
