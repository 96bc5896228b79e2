"""Replies of the HTTP interface, checked against its OpenAPI description by schemathesis."""

from functools import cache

import httpx
import schemathesis
from celery import Celery

from celery_affinity.web.app import routes_of

#: Statuses described as "any other error": errors of the layers before the routes, and of a defect.
OTHER_ERRORS = (408, 413, 421, 500)


@cache
def description():
    """Return /openapi.json, without additional properties."""
    app = Celery("described", broker="redis://", set_as_current=False)
    app.conf.broker_transport = "celery_affinity:Transport"
    document = routes_of(app).openapi()
    for schema in document["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return document


@cache
def schema():
    return schemathesis.openapi.from_dict(description())


def check(reply: httpx.Response):
    """Assert that the description of the route allows *reply*. Can also raise schemathesis' FailureGroup."""
    method, path = reply.request.method, reply.request.url.raw_path.decode().split("?")[0]
    operation = schema().find_operation_by_path(method, path)
    if operation is None or operation.method != method.lower():  # a HEAD has no operation
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
