"""The page of the HTTP interface, from its own description."""

from celery import Celery

from celery_affinity.web.application import routes_of
from celery_affinity.web.security import needed_role

from .markdown import MADE, table

BEFORE = """# HTTP interface

`celery -A shop affinity web` serves these; `/openapi.json` describes them for programs. [Ask and act over HTTP](../how-to/http.md) has
one `curl` for each. *Role*: the least that a token needs; `admin` may do all that `submit` may, and `submit` all that `read` may.

"""

AFTER = """
| status | meaning |
| --- | --- |
| 200, 201, 202 | read or repeated; made; taken on |
| 400, 413, 422 | the request cannot be read; is longer than 1 MB; an option or a field is refused: `error` says which, what is accepted, and what came |
| 401, 403 | no token, or an unknown one; the role does not suffice |
| 404 | no such job, task, type, worker or path |
| 409 | the state of things is against it: `error` says why |
| 503 | the broker does not answer; the request can be repeated |
"""


def page() -> str:
    app = Celery("docs", broker="redis://", set_as_current=False)
    app.conf.broker_transport = "celery_affinity:Transport"
    rows = [
        (f"`{method.upper()} {path}`", needed_role(method.upper(), path) or "none", about["summary"])
        for path, methods in routes_of(app).openapi()["paths"].items()
        for method, about in methods.items()
    ]
    return MADE + BEFORE + table(("request", "role", "what it does"), rows) + AFTER
