"""The HTTP interface, where each action is one ``curl``. It requires the extra ``[web]``.

Routes parse requests, call `reports` or `admin`, and reply with the JSON that the commands print. They contain no other
logic. Package `page` is the web UI. Read `app` first.
"""

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from celery import Celery

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def asgi(
    app: Celery,
    *,
    tokens: Mapping[str, str] | None = None,
    read_only: bool = False,
    allow: Iterable[str] = ("*",),
    names: Iterable[str] = (),
    traces: str | os.PathLike[str] | None = None,
) -> "ASGIApp":
    """Return the HTTP interface of *app*'s broker as an ASGI app, which can run alone or be mounted in another app.

    - *tokens*: token -> role ("read", "submit", "admin" or "worker"). With None, clients on this machine are admins,
      and other clients are rejected.
    - *read_only*: nothing can be changed.
    - *allow*: names or patterns of the tasks that can be submitted.
    - *names*: additional host names by which clients can reach this machine ("*": any).
    - *traces*: a directory of traces, for the lab.
    """
    from .app import build_app  # imported here, because it requires the extra [web]

    return build_app(app, tokens=tokens, read_only=read_only, allow=allow, names=names, traces=traces)
