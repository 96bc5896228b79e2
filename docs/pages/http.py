"""The page of the HTTP interface, from its own description."""

from celery import Celery

from celery_affinity.web.app import routes_of
from celery_affinity.web.auth import needed_role

from .markdown import MADE, table

BEFORE = """# HTTP interface

`celery -A shop affinity web` answers these requests; `/openapi.json` describes them for programs. [Ask and act over HTTP](../how-to/http.md)
has examples with `curl`. *Role*: the lowest role that the token must have. `admin` may do everything that `submit` may, and `submit` everything
that `read` may. `worker` is for programs that run jobs ([the protocol](worker-protocol.md)): it may send their requests, and nothing else.

"""

AFTER = """
| status | meaning |
| --- | --- |
| 200 | the answer, also to a request that was repeated |
| 201, 202 | the job is made; the change is accepted |
| 400, 413 | the request cannot be read; it is longer than 1 MB |
| 422 | an option or a field is refused: `error` says which, what is accepted, and what came |
| 401, 403 | the token is missing or unknown; its role does not suffice |
| 404 | there is no such job, task, type, worker or path |
| 409 | the present state does not allow the request: `error` says why |
| 503 | the broker does not answer; the request can be repeated |
"""


def page() -> str:
    app = Celery("docs", broker="redis://", set_as_current=False)
    app.conf.broker_transport = "celery_affinity:Transport"
    rows = [
        (f"`{method.upper()} {path}`", needed_role(method.upper(), path) or "none", about["summary"])
        for path, methods in sorted(routes_of(app).openapi()["paths"].items())
        for method, about in methods.items()
    ]
    return MADE + BEFORE + table(("request", "role", "what it does"), rows) + AFTER
