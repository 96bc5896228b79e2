"""Commands in flight: replies arrive in order, and a failed exchange leaves no reply."""

import os
import signal
import time

import pytest
import redis

from celery_affinity.broker.inflight import InFlightCommands
from celery_affinity.embedded import EmbeddedServer

from ..support.in_flight import connections
from ..support.processes import wait_until


def test_replies_arrive_in_order_on_one_connection(in_flight, redis_client):
    for _ in range(2):
        in_flight.send([("SET", "key", "value"), ("GET", "key")])
        assert in_flight.is_under_way
        assert in_flight.receive() == [b"OK", b"value"]
        assert not in_flight.is_under_way
    assert len(connections(redis_client)) == 1


def test_no_reply_remains_after_an_error(in_flight, redis_client):
    in_flight.send([("SET", "key", "value"), ("LPUSH", "key", "value"), ("GET", "key")])
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        in_flight.receive()
    assert in_flight.socket is None
    in_flight.send([("PING",)])
    assert in_flight.receive() == [b"PONG"]


def test_missing_reply_is_late(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url, socket_timeout=0.05)
    in_flight = InFlightCommands(pool)
    in_flight.send([("BLPOP", "nothing", 1)])
    assert not in_flight.is_late
    time.sleep(0.06)
    assert in_flight.is_late
    in_flight.close()
    assert not in_flight.is_late
    in_flight.send([("PING",)])
    assert in_flight.receive() == [b"PONG"]
    in_flight.close()


def test_reset_connection_is_readable_and_raises_connection_error():
    """redis-py closes it while it checks for input, and its parser then raises an AttributeError."""
    with EmbeddedServer() as server:
        in_flight = InFlightCommands(redis.ConnectionPool.from_url(server.url, socket_timeout=5))
        in_flight.send([("PING",)])
        in_flight.receive()
        os.kill(server.pid, signal.SIGSTOP)
        in_flight.send([("PING",), ("PING",)])
        server.kill()  # with unread commands, so the connection is reset
        wait_until(lambda: in_flight.is_readable, 5, "its end comes")
        assert in_flight.is_readable
        assert not in_flight.is_late
        with pytest.raises(redis.ConnectionError):
            in_flight.receive()
        assert not in_flight.is_under_way


def test_unread_reply_that_arrived_is_not_late(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url, socket_timeout=0.05)
    in_flight = InFlightCommands(pool)
    in_flight.send([("ECHO", "one")])
    time.sleep(0.06)
    while in_flight.is_late:
        pass
    assert in_flight.receive() == [b"one"]
    in_flight.close()


def test_second_command_does_not_mix_up_the_replies(server, redis_client):
    """redis-py sends its own PING on a connection that was idle for a while."""
    pool = redis.ConnectionPool.from_url(server.url, health_check_interval=1)
    in_flight = InFlightCommands(pool)
    in_flight.send([("ECHO", "first")])
    in_flight._connection.next_health_check = 0
    in_flight.send_more([("ECHO", "second")])
    assert in_flight.receive() == [b"first", b"second"]
    in_flight.close()
    pool.disconnect()
