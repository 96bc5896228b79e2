"""The page of the HTTP interface, from its own description."""

from celery import Celery

from celery_affinity.web.app import routes_of
from celery_affinity.web.auth import needed_role

from .markdown import MADE, table

BEFORE = """# HTTP interface

`celery -A shop affinity web` answers these requests; `/openapi.json` describes them for programs. [HTTP API](../how-to/http.md)
has examples with `curl`. *Role*: the lowest role that the token must have. `admin` may do everything that `submit` may, and `submit` everything
that `read` may. `worker` is for programs that run jobs ([the protocol](worker-protocol.md)): it may send their requests, and nothing else.

"""

AFTER = """
## Status codes

| status | meaning |
| --- | --- |
| 200 | the answer, also to a repeated request |
| 201, 202 | the job was created; the change is accepted |
| 400, 413 | the request cannot be read, has an unknown or invalid filter (`tpye=pdf`), or lists ended jobs without a longer `affinity_keep`; it is longer than 1 MB |
| 401, 403 | the token is missing or unknown; its role is too low |
| 404 | no such job, task, type, key, dead letter, recurring call, worker, trace or path |
| 409 | the state does not allow the request: the job is claimed or ended, or its pool cannot end it; the idempotency key has another body; the pause does not exist |
| 414, 431 | the target in the first line is longer than 32 kB; there are more than 100 headers, or 64 kB |
| 422 | an option or a field is refused, such as priority 11: `error` names it, the accepted values, and the received value |
| 503 | the broker does not answer (`Retry-After`), or there are too many connections; the request can be repeated |

## Limits

- A body is JSON of at most 1 MB and 100 nested levels, and must arrive within 30 s.
- The head of a request must be complete within 10 s; otherwise the server closes the connection. A head has at most 100 headers and 64 kB, and the
  target in its first line at most 32 kB.
- A client sends at most 16 requests ahead of their replies.
- The server accepts 2,000 connections, and 200 browsers with the web UI open; more get 503. So clients without a token cannot fill its memory.

These limits belong to `celery affinity web`; a mounted ASGI app has the limits of its web server.
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
