"""Commands that were sent and are not answered yet: the replies come in order, and a broken exchange leaves none."""

import os
import signal
import time

import pytest
import redis

from celery_affinity.broker.inflight import InFlightCommands
from celery_affinity.embedded import EmbeddedServer

from ..support.in_flight import connections
from ..support.processes import wait_until


def test_the_replies_come_in_order_on_one_connection(in_flight, redis_client):
    for _ in range(2):
        in_flight.send([("SET", "key", "value"), ("GET", "key")])
        assert in_flight.is_under_way
        assert in_flight.receive() == [b"OK", b"value"]
        assert not in_flight.is_under_way
    assert len(connections(redis_client)) == 1


def test_after_an_error_no_reply_is_taken_for_that_of_the_next(in_flight, redis_client):
    in_flight.send([("SET", "key", "value"), ("LPUSH", "key", "value"), ("GET", "key")])
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        in_flight.receive()
    assert in_flight.socket is None
    in_flight.send([("PING",)])
    assert in_flight.receive() == [b"PONG"]


def test_what_the_server_does_not_answer_in_time_is_late(server, redis_client):
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


def test_a_connection_that_was_reset_is_readable_and_raises_a_connection_error():
    """redis-py closes it while it looks for input, and its parser then raises an AttributeError."""
    with EmbeddedServer() as server:
        in_flight = InFlightCommands(redis.ConnectionPool.from_url(server.url, socket_timeout=5))
        in_flight.send([("PING",)])
        in_flight.receive()
        os.kill(server.pid, signal.SIGSTOP)
        in_flight.send([("PING",), ("PING",)])
        server.kill()  # with commands that it has not read: the connection is reset
        wait_until(lambda: in_flight.is_readable, 5, "its end comes")
        assert in_flight.is_readable
        assert not in_flight.is_late
        with pytest.raises(redis.ConnectionError):
            in_flight.receive()
        assert not in_flight.is_under_way


def test_a_reply_that_nobody_had_time_to_read_is_not_late(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url, socket_timeout=0.05)
    in_flight = InFlightCommands(pool)
    in_flight.send([("ECHO", "one")])
    time.sleep(0.06)
    while in_flight.is_late:
        pass
    assert in_flight.receive() == [b"one"]
    in_flight.close()


def test_what_is_sent_while_a_reply_is_due_is_not_taken_for_another_reply(server, redis_client):
    """redis-py sends a PING of its own on a connection on which nothing was read for a while."""
    pool = redis.ConnectionPool.from_url(server.url, health_check_interval=1)
    in_flight = InFlightCommands(pool)
    in_flight.send([("ECHO", "first")])
    in_flight._connection.next_health_check = 0
    in_flight.send_more([("ECHO", "second")])
    assert in_flight.receive() == [b"first", b"second"]
    in_flight.close()
    pool.disconnect()
