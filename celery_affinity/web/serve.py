"""Serve the HTTP interface alone: ``celery affinity web``."""

import os
import socket
from collections.abc import Callable, Iterable

import uvicorn
from celery import Celery

from ..errors import SettingError
from . import asgi
from .connection import HttpConnection
from .security import is_loopback
from .tokens import VARIABLE, read_tokens

#: Longest time, s, for which requests that are under way hold up the end.
_END_S = 3

#: Time, s, for which an idle connection is kept, and largest number of connections.
_IDLE_S, _MOST_CONNECTIONS = 30, 2000


def serve(
    app: Celery,
    *,
    host: str,
    port: int,
    token_file: str | None,
    read_only: bool,
    allow: Iterable[str],
    names: Iterable[str],
    on_ready: Callable[[str], object],
    traces: str | os.PathLike[str] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. *on_ready* is called with the URL. Raises SettingError, OSError."""
    tokens = read_tokens(token_file)
    if tokens is None and not _is_this_machine(host):
        raise SettingError(f"--host {host} admits other machines: --token-file or ${VARIABLE} must name their tokens")
    wildcard = host in ("", "0.0.0.0", "::")  # noqa: S104  # compared, not bound
    names = [*names, *([] if wildcard else [host])]
    site = asgi(app, tokens=tokens, read_only=read_only, allow=allow, names=names, traces=traces)
    config = uvicorn.Config(
        site,
        host=host,
        port=port,
        log_level="critical",  # the guard answers and logs errors; here each request that the end cuts off is one
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=HttpConnection,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_END_S,
    )
    with socket.create_server((host, port), family=_family(host), backlog=2048) as listening:
        # Connections inherit this; asyncio sees to it for its own sockets alone. A reply is two writes, of which the
        # second would wait 40 ms for the client's ack of the first.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shown = f"[{host}]" if ":" in host else host or "0.0.0.0"  # noqa: S104
        on_ready(f"http://{shown}:{listening.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listening])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _is_this_machine(host: str) -> bool:
    return host == "localhost" or is_loopback(host)
