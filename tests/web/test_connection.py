"""Clients that do not finish a request head, on a server that waits half a second for it."""

import queue
import socket
import threading

import pytest
import uvicorn

from celery_affinity.web import server as server_module
from celery_affinity.web.server import serve

from ..support.processes import wait_until

#: Seconds that the server waits for a head, and the maximum seconds that a test waits for a reply.
HEAD_S, PATIENCE_S = 0.5, 20

#: The server's maximum number of connections.
MAX_CONNECTIONS = 4

WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def connect(valkey, redis_client, app, monkeypatch):
    """Return a function that connects to a server in a thread and sends bytes."""
    monkeypatch.setattr(server_module, "HEAD_S", HEAD_S)
    monkeypatch.setattr("celery_affinity.web.server._MAX_CONNECTIONS", MAX_CONNECTIONS + 1)
    servers, ready, clients = [], queue.Queue(), []
    run = uvicorn.Server.run
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: (servers.append(server), run(server, sockets)))
    options = {"token_file": None, "read_only": False, "allow": ["*"], "names": [], "on_ready": ready.put}
    thread = threading.Thread(target=serve, args=(app,), kwargs={"host": "127.0.0.1", "port": 0, **options})
    thread.start()
    port = int(ready.get(timeout=PATIENCE_S).rpartition(":")[2])

    def connect(sent=b""):
        client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        clients.append(client)
        client.sendall(sent)
        return client

    yield connect
    for client in clients:
        client.close()
    servers[0].should_exit = True
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def answered(client):
    """Read a reply. Return its first line."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += received(client)
    head, _, body = got.partition(b"\r\n\r\n")
    length = next(int(line.split()[1]) for line in head.lower().splitlines() if line.startswith(b"content-length"))
    while len(body) < length:
        body += received(client)
    return head.splitlines()[0]


def received(client):
    more = client.recv(65536)
    assert more, "the server has closed the connection"
    return more


def is_closed(client):
    return client.recv(4096) == b""


@pytest.mark.parametrize("head", [b"", b"GET /heal", WHOLE[:-2]])
def test_incomplete_first_head_closes_the_connection_in_time(connect, head):
    assert is_closed(connect(head))


@pytest.mark.parametrize("head", [b"\r\n", b"GET /heal", WHOLE[:-2]])
def test_incomplete_next_head_closes_the_connection_in_time(connect, head):
    client = connect(WHOLE)
    assert b"200" in answered(client)
    client.sendall(head)
    assert is_closed(client)


def test_head_sent_byte_by_byte_extends_no_time_limit(connect):
    client = connect(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
    client.settimeout(HEAD_S / 10)

    def drips():
        try:
            client.sendall(b"x")
            return is_closed(client)
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    wait_until(drips, PATIENCE_S, "the connection ends")


def test_rest_of_an_answered_body_gets_a_heads_time(connect):
    client = connect(b"POST /api/jobs HTTP/1.1\r\nHost: foreign.example\r\nContent-Length: 900\r\n\r\n")
    assert b"421" in answered(client)
    client.sendall(b"x")
    assert is_closed(client)


def test_idle_connections_slow_bodies_and_events_continue(connect):
    news = connect(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    body = connect(b"PATCH /api/settings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n")
    body.sendall(b"Content-Type: application/json\r\n\r\n{")
    idle = connect(WHOLE)
    assert b"200" in answered(idle)
    assert is_closed(connect(WHOLE[:-2])), "the time of all others is over as well"
    idle.sendall(WHOLE)
    assert b"200" in answered(idle)
    body.sendall(b"}")
    assert b"400 Bad Request" in answered(body)
    got = b""
    while got.count(b"event: news") < 2:
        got += received(news)


def test_excess_connections_get_503_and_older_ones_replies(connect):
    older = [connect(WHOLE) for _ in range(MAX_CONNECTIONS)]
    assert {answered(each) for each in older} == {b"HTTP/1.1 200 OK"}
    assert b"503" in answered(connect())
    for each in older:
        each.sendall(WHOLE)
    assert {answered(each) for each in older} == {b"HTTP/1.1 200 OK"}
    older[0].close()
    wait_until(lambda: b"200" in answered(connect(WHOLE)), PATIENCE_S, "the next one is accepted")


def test_input_other_than_http_gets_an_error_as_json(connect):
    client = connect(b"no HTTP at all\r\n\r\n")
    assert client.recv(65536).endswith(b'{"error":{"code":"bad-request","message":"Invalid HTTP request received."}}')
    assert is_closed(client)
