"""Requests of any size from clients without a token use little memory, and do not block other clients."""

import os
import re
import socket
import sys

import pytest

from celery_affinity.web import server

from ..support.apps import APP
from ..support.endless_requests import status_of, why_not_bounded
from ..support.processes import Process, wait_until

TOKEN = "t" * 16


@pytest.fixture
def web(valkey, redis_client, tmp_path):
    """Return a web process that requires tokens, and its address."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"admin {TOKEN}\n")
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "web", "--port", "0", "--token-file", str(tokens)]
    process = Process("web", command, {"BROKER_URL": valkey.url, "LEDGER": os.devnull, "PYTHONUNBUFFERED": "1"})
    found = wait_until(lambda: re.search(r"web ready on http://(\S+):(\d+)", process.log()), 30, process.log())
    process.address = found[1], int(found[2])
    return process


@pytest.fixture
def connect(web):
    """Return a function that connects to the process."""
    clients = []

    def connect():
        clients.append(socket.create_connection(web.address, timeout=20))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def asked(client, *headers, path="/healthz"):
    """Send a complete request. Return the reply's status."""
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]
    client.sendall("\r\n".join(lines).encode())
    return status_of(client)


def test_endless_requests_without_a_token_do_not_fill_memory(web, connect):
    assert not why_not_bounded(web.pid, connect, lambda: asked(connect()) == 200)
    assert "Traceback" not in web.log()


def test_request_limits_are_answered_with_their_status(connect):
    limits = {
        "a long target": (server.MAX_TARGET_BYTES, 414, lambda size: ((), "/" + "x" * size)),
        "many bytes": (server.MAX_HEAD_BYTES, 431, lambda size: ([f"A: {'x' * size}"], "/healthz")),
        "many headers": (server.MAX_HEADERS, 431, lambda size: (["A: b"] * size, "/healthz")),
    }
    found = {}
    for name, (most, _, request) in limits.items():
        for size in (most - 20, 2 * most):
            headers, path = request(size)
            found[name, size <= most] = asked(connect(), *headers, path=path)
    wanted = {(name, False): status for name, (_, status, _) in limits.items()}
    assert found == wanted | {("a long target", True): 401, ("many bytes", True): 200, ("many headers", True): 200}
