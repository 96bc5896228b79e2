"""The guard's Redis client receives bytes that are not valid replies."""

import socket
import threading

import pytest

from celery_affinity.liveness import redis_client as wire


@pytest.mark.parametrize(
    "reply", [b"garbage\r\n", b"$x\r\n", b":x\r\n", b"*x\r\n", b"*1\r\n" * 3000, b"$99999999999999999999\r\n"]
)
def test_invalid_reply_is_a_lost_connection_to_the_guard(reply):
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        peer, _ = listener.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(reply)

    threading.Thread(target=answer, daemon=True).start()
    server = dict.fromkeys(("path", "tls", "username", "password", "db", "client_name"))
    connection = wire.GuardConnection({**server, "host": "127.0.0.1", "port": listener.getsockname()[1]}, 5)
    try:
        if reply.startswith(b"garbage"):
            assert connection.call("PING") == b"arbage"
        else:
            with pytest.raises(OSError):  # any kind of OSError: the guard takes another connection
                connection.call("PING")
    finally:
        connection.close()
        listener.close()
