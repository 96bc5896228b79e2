"""Replies of the HTTP interface, checked against its own description by schemathesis."""

from functools import cache

import httpx
import schemathesis
from celery import Celery

from celery_affinity.web.app import routes_of

#: What is described as "any other error": of what stands before the routes, and of a defect.
OTHER_ERRORS = (408, 413, 421, 500)


@cache
def description():
    """Return /openapi.json, with no room for what it does not name."""
    app = Celery("described", broker="redis://", set_as_current=False)
    app.conf.broker_transport = "celery_affinity:Transport"
    found = routes_of(app).openapi()
    for schema in found["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return found


@cache
def schema():
    return schemathesis.openapi.from_dict(description())


def check(reply: httpx.Response):
    """Assert that *reply* is one that its route is described to have. Raises schemathesis' FailureGroup as well."""
    method, path = reply.request.method, reply.request.url.raw_path.decode().split("?")[0]
    operation = schema().find_operation_by_path(method, path)
    if operation is None or operation.method != method.lower():  # a HEAD is no operation
        return
    if reply.status_code in OTHER_ERRORS:
        assert set(reply.json()["error"]) == {"code", "message"}
        return
    documented = description()["paths"][operation.path][operation.method]["responses"]
    assert str(reply.status_code) in documented, (operation.label, reply.text)
    if reply.status_code == 204:
        assert reply.content == b""
        return
    kind = reply.headers["content-type"].partition(";")[0]
    assert kind in documented[str(reply.status_code)]["content"], operation.label
    operation.validate_response(reply)
