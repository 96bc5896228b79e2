"""The worker's part in kombu's event loop: a wake has the loop iterate, and the loop reads replies without waiting."""

import threading
import time
from collections import deque

import pytest
from kombu.asynchronous.hub import Hub

from celery_affinity.worker.event_loop import EventLoop

from ..support.in_flight import connections


class ByHand:
    """A hub whose iterations a test calls, and the ticks and replies seen in these."""

    def __init__(self, in_flight):
        self.hub = Hub()
        self.seen = []
        self.to_send = deque()
        self.loop = EventLoop(self.hub, in_flight, on_tick=self._tick, on_reply=self._reply)

    def _tick(self):
        self.seen.append("tick")
        if self.to_send and not self.loop.in_flight.is_under_way:
            self.loop.in_flight.send(self.to_send.popleft())

    def _reply(self):
        self.seen.append(self.loop.in_flight.receive())

    def iterate(self, times=1):
        for _ in range(times):
            self.hub.run_once()


@pytest.fixture
def by_hand(in_flight):
    by_hand = ByHand(in_flight)
    yield by_hand
    by_hand.loop.close()
    by_hand.hub.close()


def test_the_loop_reads_the_reply_when_it_is_there(by_hand, redis_client):
    by_hand.to_send += [[("ECHO", "one")], [("ECHO", "two")]]
    by_hand.iterate(2)
    assert by_hand.seen == ["tick", [b"one"], "tick", [b"two"]]


def test_a_connection_that_the_server_closed_is_watched_no_more_and_another_is(by_hand, redis_client):
    by_hand.to_send.append([("ECHO", "one")])
    by_hand.iterate()
    (first,) = connections(redis_client)
    fileno = by_hand.loop.in_flight.socket.fileno()
    redis_client.client_kill_filter(_id=first)
    by_hand.iterate()
    assert by_hand.loop.in_flight.socket is None, "or each iteration would find it readable, for ever"
    assert fileno not in by_hand.hub.readers, "it may be another's by now"
    by_hand.to_send.append([("ECHO", "two")])
    by_hand.iterate()
    assert by_hand.seen[-1] == [b"two"]
    assert connections(redis_client) not in ([], [first])


def test_a_connection_that_is_closed_leaves_the_loop_before_another_has_its_number(by_hand):
    by_hand.to_send.append([("ECHO", "one")])
    by_hand.iterate(2)
    fileno = by_hand.loop.in_flight.socket.fileno()
    assert fileno in by_hand.hub.readers
    by_hand.loop.in_flight.close()
    assert fileno not in by_hand.hub.readers


def test_whoever_took_its_place_in_the_loop_does_not_keep_the_reply(by_hand):
    by_hand.loop.in_flight.send([("ECHO", "one")])
    by_hand.loop.watch()
    by_hand.hub.add_reader(by_hand.loop.in_flight.socket.fileno(), lambda: None)
    by_hand.iterate(2)
    assert [b"one"] in by_hand.seen


def test_a_reply_that_nobody_reads_is_read_when_it_is_late(by_hand, monkeypatch):
    by_hand.loop.in_flight.send([("ECHO", "one")])
    monkeypatch.setattr(by_hand.loop, "watch", lambda: None)
    by_hand.loop.in_flight._connection.socket_timeout = 0.05
    time.sleep(0.1)
    by_hand.iterate()
    assert by_hand.seen[0] == [b"one"]


def test_another_thread_wakes_a_loop_that_waits(by_hand):
    by_hand.hub.timer.call_after(30, lambda: None)  # the timer that the loop would wait for
    by_hand.iterate()  # kombu's hub reads its own things
    waits = threading.Thread(target=by_hand.iterate)
    waits.start()
    by_hand.loop.wake()
    waits.join(10)
    assert not waits.is_alive()


def test_nothing_wakes_a_loop_that_is_to_be_answered(by_hand, redis_client, monkeypatch):
    woken = []
    monkeypatch.setattr(by_hand.loop._waker, "wake", lambda: woken.append(1))
    by_hand.loop.in_flight.send([("ECHO", "one")])
    by_hand.loop.wake()
    assert not woken
    by_hand.loop.in_flight.receive()
    by_hand.loop.wake()
    assert woken


def test_a_loop_knows_its_own_thread(by_hand):
    elsewhere = []
    asking = threading.Thread(target=lambda: elsewhere.append(by_hand.loop.is_here))
    asking.start()
    asking.join()
    assert by_hand.loop.is_here
    assert elsewhere == [False]
