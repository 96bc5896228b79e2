"""/openapi.json describes each route correctly: its replies, errors and token. All tests here check each reply."""

import json

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks

from celery_affinity.lab.trace_file import write_trace
from examples.made_up_trace import make_trace

from ..support import openapi
from ..support.openapi import description, schema

#: Valid requests to one fleet, which is not emptied in between.
REQUESTS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

CHECKS = [checks.content_type_conformance, checks.response_headers_conformance, checks.response_schema_conformance]

ROUTES = [(method, path) for path, methods in description()["paths"].items() for method in methods]
OPEN = ("/healthz", "/readyz")

#: Existing objects, by the name of a path parameter.
THERE = {
    "id": ["task-held!", "task-waits!", "task-later", "task-buried", "task-done"],
    "type_": ["pdf", "mail"],
    "name": ["worker@host", "plan", "night.jsonl"],
    "key": ["city:HH"],
    "profile": ["pdf"],
    "worker": ["0" * 32],
}


@pytest.fixture
def fleet(fleet, monkeypatch):
    monkeypatch.setattr("celery_affinity.web.report_routes._ANSWER_S", 0.01)
    fleet.join("worker", "pdf", "mail", slots=1)
    fleet.bury("buried", "mail")
    fleet.publish("done", "pdf")
    fleet.end("worker", *fleet.inbox("worker"))
    fleet.publish("held!", "pdf", rules="key=city%3AHH limit=1")
    fleet.publish("waits!", "pdf", rules="key=city%3AHH limit=1")
    fleet.publish("later", "pdf", delay_s=600)
    return fleet


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_description_has_replies_and_one_error_form(method, path):
    about = description()["paths"][path][method]
    good = [each for each in about["responses"] if each.startswith("2")]
    for status, reply in about["responses"].items():
        assert ("content" in reply) == (status != "204")
        for kind, content in reply.get("content", {}).items():
            if status in good:
                assert content["schema"] not in ({}, None), "no schema"
                assert kind == {"/metrics": "text/plain", "/api/events": "text/event-stream"}.get(
                    path, "application/json"
                )
            elif (method, path, status) != ("get", "/api/jobs/{id}", "404"):
                assert (kind, content["schema"]) == ("application/json", {"$ref": "#/components/schemas/Error"})
    assert good
    assert "{" not in path or "404" in about["responses"], "a line break is in no path"
    assert ("security" in about) == (path not in OPEN)


@pytest.fixture
def web(serve, tmp_path):
    write_trace(make_trace(50), tmp_path / "night.jsonl")
    return serve(traces=tmp_path)


def test_described_requests_get_described_replies(fleet, web):
    operations = [each.ok() for each in schema().get_all_operations()]
    cases = st.one_of([each.as_strategy() for each in operations if each.path != "/api/events"])

    @REQUESTS
    @given(cases, st.data())
    def ask(case, data):
        for name in case.path_parameters or {}:
            if data.draw(st.booleans()):
                case.path_parameters[name] = data.draw(st.sampled_from(THERE[name]))
        if "wait" in (case.query or {}):
            case.query["wait"] = 0
        given = case.as_transport_kwargs(base_url="http://localhost")
        headers = {name: value for name, value in given["headers"].items() if name.lower() != "user-agent"}
        sent = {name: given[name] for name in ("params", "json") if given.get(name) is not None}
        reply = web(given["method"], given["url"], headers=headers, **sent)
        assert reply.status_code != 500
        case.validate_response(reply, checks=CHECKS)

    ask()


def test_each_route_accepts_a_token_as_described(serve, fleet):
    web = serve(tokens={"t" * 20: "admin"})
    for method, path in ROUTES:
        reply = web(method.upper(), path.replace("{", "").replace("}", ""))
        assert (reply.status_code == 401) == (path not in OPEN)


def test_undescribed_reply_is_noticed():
    def check(status, body, kind="application/json"):
        stream, headers = httpx.ByteStream(json.dumps(body).encode()), {"Content-Type": kind}
        transport = httpx.MockTransport(lambda _: httpx.Response(status, headers=headers, stream=stream))
        with httpx.Client(transport=transport) as client:
            openapi.check(client.get("http://localhost/healthz"))

    check(200, {"status": "ok"})
    for bad in ((200, {}), (200, {"status": 1}), (200, {"status": "ok", "more": 1}), (418, {"status": "ok"})):
        with pytest.raises((AssertionError, FailureGroup)):
            check(*bad)
    with pytest.raises((AssertionError, FailureGroup)):
        check(200, {"status": "ok"}, "text/plain")
