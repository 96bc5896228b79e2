"""No HTTP request causes a 500, a traceback, a reply other than JSON, or a lost job."""

import json
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..support.apps import APP

#: Invalid requests to one fleet, which the test does not empty in between, because they must not damage it.
FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

METHODS = st.sampled_from(["GET", "POST", "DELETE", "PATCH", "PUT", "HEAD", "OPTIONS"])
WORDS = st.one_of(
    st.sampled_from(["task-job", "nobody", "pdf", "worker@host", "city:HH", "..", "%00", "%ff", "%2F", "a%20b", ""]),
    st.text(max_size=12).map(lambda text: quote(text, safe="")),
)
PATHS = st.builds(
    lambda room, words: f"/api/{room}" + "".join(f"/{word}" for word in words),
    st.sampled_from(
        ["jobs", "types", "workers", "settings", "keys", "dead", "reserves", "pauses", "status", "lab", "x"]
    ),
    st.lists(st.one_of(WORDS, st.sampled_from(["pause", "resume", "drain", "retry", "replay"])), max_size=3),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
QUERIES = st.dictionaries(
    st.sampled_from(
        [
            "state",
            "type",
            "task",
            "limit",
            "cursor",
            "explain",
            "wait",
            "terminate",
            "pattern",
            "reason",
            "older_than_s",
            "newer_than_s",
            "argument",
            "stamp",
            "key",
            "cohort",
            "dry_run",
            "kind",
            "name",
            "target_wait",
        ]
    ),
    st.one_of(
        st.text(max_size=10), st.sampled_from(["pending", "0", "1", "-1", "1e400", "5e-324", "nan", "true", "W10"])
    ),
    max_size=3,
)


@pytest.fixture
def fleet(fleet):
    fleet.join("worker", "pdf", slots=2)
    fleet.bury("buried", "mail")
    for name in ("job", "other"):
        fleet.publish(name, "pdf", delay_s=600)
    return fleet


def check(reply, method):
    assert reply.status_code not in (500, 502, 503), reply.text
    assert "Traceback" not in reply.text
    if method != "HEAD" and "json" in reply.headers.get("content-type", ""):
        found = json.loads(reply.content)
        if reply.status_code >= 400 and "error" in found:
            assert set(found["error"]) == {"code", "message"}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("celery_affinity.web.report_routes._ANSWER_S", 0.01)


def test_any_path_and_query_gets_a_valid_reply(fleet, web, quick):
    @FUZZ
    @given(METHODS, PATHS, QUERIES.map(lambda query: {**query, "wait": "0"} if "wait" in query else query))
    def fuzz(method, path, query):
        reply = web(method, path, params=query)
        check(reply, method)
        if "unknown name after the '?'" in reply.text:  # then with names that the route knows
            known = reply.json()["error"]["message"].rpartition("accepted: ")[2].split(", ")
            check(web(method, path, params={name: query[name] for name in query if name in known}), method)

    fuzz()
    assert fleet.scheduler.repair() == []


def test_any_body_gets_a_valid_reply(fleet, web, quick):
    targets = st.sampled_from(
        [
            ("POST", "/api/jobs"),
            ("PATCH", "/api/settings"),
            ("POST", "/api/types/pdf/pause"),
            ("POST", "/api/pauses"),
            ("PATCH", "/api/jobs?type=pdf"),
            ("POST", "/api/jobs/task-job/retry"),
            ("DELETE", "/api/jobs/nobody"),
        ]
    )

    @FUZZ
    @given(targets, VALUES)
    def fuzz(target, body):
        check(web(*target, json=body), target[0])

    fuzz()
    assert fleet.scheduler.repair() == []


def test_any_call_gets_a_valid_reply(fleet, web):
    names = st.sampled_from(["queue", "affinity", "priority", "on_demand", "countdown", "eta", "expires", "exclusive"])
    more = st.sampled_from(["merge_key", "ignore_result", "time_limit", "soft_time_limit", "shadow", "other"])
    values = VALUES | st.sampled_from(["2030-01-01T00:00:00Z", "0001-01-01", "9999-12-31", "\udc80", "a:b", "x" * 300])
    printable = st.characters(min_codepoint=32, max_codepoint=126)
    keys = st.none() | st.text(printable, max_size=8).map(str.strip)  # clients refuse spaces around a header

    @FUZZ
    @given(
        st.sampled_from(["pdf", "excel", "mail", "nobody"]),
        st.lists(VALUES, max_size=3),
        st.dictionaries(st.text(max_size=8), VALUES, max_size=2),
        st.dictionaries(names | more, values, max_size=3),
        keys,
    )
    def fuzz(task, args, kwargs, options, key):
        body = {"task": f"{APP}.{task}", "args": args, "kwargs": kwargs, "options": options}
        headers = {"Content-Type": "application/json"} | ({} if key is None else {"Idempotency-Key": key})
        reply = web("POST", "/api/jobs", content=json.dumps(body), headers=headers)
        check(reply, "POST")
        if reply.status_code == 201:
            assert web.get(reply.headers["Location"]).status_code == 200

    fuzz()
    assert fleet.scheduler.repair() == []


def test_any_bytes_get_a_valid_reply(fleet, web):
    @FUZZ
    @given(st.binary(max_size=60), st.sampled_from(["application/json", "application/json; charset=x", "text/html"]))
    def fuzz(body, kind):
        check(web("POST", "/api/jobs", content=body, headers={"Content-Type": kind}), "POST")

    fuzz()
