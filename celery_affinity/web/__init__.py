"""The HTTP interface: every interaction is one ``curl``. It comes with the extra ``[web]``.

Routes read requests, ask `observe` or `operate`, and reply with the JSON that the commands print; routes decide
nothing. The page in a browser is in `page`.
Read `application` first.
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
    """Return the HTTP interface of *app*'s broker as an ASGI app, to be served alone or mounted in another one.

    *tokens*: token -> role ("read", "submit", "admin" or "worker"); None: everybody on this machine is an admin, and
    nobody else gets an answer. *read_only*: nothing can be changed. *allow*: names or patterns of the tasks that can
    be submitted. *names*: hosts, beside this one and addresses, by whose names clients may reach it ("*": any).
    *traces*: a directory of traces, for the lab.
    """
    from .app import build_app  # not at the top: it needs the extra [web]

    return build_app(app, tokens=tokens, read_only=read_only, allow=allow, names=names, traces=traces)
