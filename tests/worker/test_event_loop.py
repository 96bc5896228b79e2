"""The worker's part in kombu's event loop: a wake makes the loop turn, and the loop reads replies without waiting."""

import threading
import time
from collections import deque

import pytest
from kombu.asynchronous.hub import Hub

from celery_affinity.worker.event_loop import Loop

from ..support.in_flight import connections


class Turning:
    """A hub that a test turns by hand, and the ticks and replies seen in its turns."""

    def __init__(self, in_flight):
        self.hub = Hub()
        self.seen = []
        self.to_send = deque()
        self.loop = Loop(self.hub, in_flight, on_tick=self._tick, on_reply=self._reply)

    def _tick(self):
        self.seen.append("tick")
        if self.to_send and not self.loop.in_flight.is_under_way:
            self.loop.in_flight.send(self.to_send.popleft())

    def _reply(self):
        self.seen.append(self.loop.in_flight.receive())

    def turn(self, times=1):
        for _ in range(times):
            self.hub.run_once()


@pytest.fixture
def turning(in_flight):
    turning = Turning(in_flight)
    yield turning
    turning.loop.close()
    turning.hub.close()


def test_the_loop_reads_the_reply_when_it_is_there(turning, redis_client):
    turning.to_send += [[("ECHO", "one")], [("ECHO", "two")]]
    turning.turn(2)
    assert turning.seen == ["tick", [b"one"], "tick", [b"two"]]


def test_a_connection_that_the_server_closed_is_watched_no_more_and_another_is(turning, redis_client):
    turning.to_send.append([("ECHO", "one")])
    turning.turn()
    (first,) = connections(redis_client)
    fileno = turning.loop.in_flight.socket.fileno()
    redis_client.client_kill_filter(_id=first)
    turning.turn()
    assert turning.loop.in_flight.socket is None, "or each turn would find it readable, for ever"
    assert fileno not in turning.hub.readers, "it may be another's by now"
    turning.to_send.append([("ECHO", "two")])
    turning.turn()
    assert turning.seen[-1] == [b"two"]
    assert connections(redis_client) not in ([], [first])


def test_a_connection_that_is_closed_leaves_the_loop_before_another_has_its_number(turning):
    turning.to_send.append([("ECHO", "one")])
    turning.turn(2)
    fileno = turning.loop.in_flight.socket.fileno()
    assert fileno in turning.hub.readers
    turning.loop.in_flight.close()
    assert fileno not in turning.hub.readers


def test_whoever_took_its_place_in_the_loop_does_not_keep_the_reply(turning):
    turning.loop.in_flight.send([("ECHO", "one")])
    turning.loop.watch()
    turning.hub.add_reader(turning.loop.in_flight.socket.fileno(), lambda: None)
    turning.turn(2)
    assert [b"one"] in turning.seen


def test_a_reply_that_nobody_reads_is_read_when_it_is_late(turning, monkeypatch):
    turning.loop.in_flight.send([("ECHO", "one")])
    monkeypatch.setattr(turning.loop, "watch", lambda: None)
    turning.loop.in_flight._connection.socket_timeout = 0.05
    time.sleep(0.1)
    turning.turn()
    assert turning.seen[0] == [b"one"]


def test_another_thread_wakes_a_loop_that_waits(turning):
    turning.hub.timer.call_after(30, lambda: None)  # the timer that the loop would wait for
    turning.turn()  # kombu's hub reads its own things
    waits = threading.Thread(target=turning.turn)
    waits.start()
    turning.loop.wake()
    waits.join(10)
    assert not waits.is_alive()


def test_nothing_wakes_a_loop_that_is_to_be_answered(turning, redis_client, monkeypatch):
    woken = []
    monkeypatch.setattr(turning.loop._waker, "wake", lambda: woken.append(1))
    turning.loop.in_flight.send([("ECHO", "one")])
    turning.loop.wake()
    assert not woken
    turning.loop.in_flight.receive()
    turning.loop.wake()
    assert woken


def test_a_loop_knows_its_own_thread(turning):
    elsewhere = []
    asking = threading.Thread(target=lambda: elsewhere.append(turning.loop.is_here))
    asking.start()
    asking.join()
    assert turning.loop.is_here
    assert elsewhere == [False]
