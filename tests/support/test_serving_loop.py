"""A serving loop leaves no connection open, even if clients connect while it closes."""

import gc
import socket
import sys
import threading
import time

import pytest

from .processes import wait_until
from .serving_loop import HOST, ServingLoop


async def _echo(reader, writer):
    while data := await reader.read(100):
        writer.write(data)


def _connect(port, over):
    while not over.is_set():
        try:
            socket.create_connection((HOST, port), 0.05).close()
        except OSError:
            return


@pytest.fixture
def no_leaks(monkeypatch):
    """Fail the test if it leaves a socket open."""
    warnings = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: warnings.append(str(args.exc_value)))
    yield
    gc.collect()
    assert warnings == []


def test_connections_opened_during_close_are_closed(no_leaks):
    for number in range(5):
        loop, over = ServingLoop("echo"), threading.Event()
        port = loop.listen(_echo)
        clients = [threading.Thread(target=_connect, args=(port, over)) for _ in range(3)]
        for each in clients:
            each.start()
        time.sleep(number / 1000)  # at any moment
        loop.close()
        over.set()
        for each in clients:
            each.join()


def test_connection_ends_with_its_task(no_leaks):
    async def refuse(reader, writer):
        raise ConnectionResetError

    loop = ServingLoop("refuses")
    try:
        with socket.create_connection((HOST, loop.listen(refuse)), 5) as client:
            wait_until(lambda: _is_over(client), 5, "it is over")
    finally:
        loop.close()


def _is_over(client):
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True
