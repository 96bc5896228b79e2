"""The worker's part in kombu's event loop: a wake starts an iteration, and the loop reads replies without waiting."""

import threading
import time
from collections import deque

import pytest
from kombu.asynchronous.hub import Hub

from celery_affinity.worker.event_loop import EventLoop

from ..support.in_flight import connections


class ByHand:
    """A hub with manual iterations, and the ticks and replies seen in them."""

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


def test_loop_reads_a_reply_when_it_arrives(by_hand, redis_client):
    by_hand.to_send += [[("ECHO", "one")], [("ECHO", "two")]]
    by_hand.iterate(2)
    assert by_hand.seen == ["tick", [b"one"], "tick", [b"two"]]


def test_loop_drops_a_closed_connection_and_watches_the_next(by_hand, redis_client):
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


def test_closed_connection_leaves_the_loop_before_fd_reuse(by_hand):
    by_hand.to_send.append([("ECHO", "one")])
    by_hand.iterate(2)
    fileno = by_hand.loop.in_flight.socket.fileno()
    assert fileno in by_hand.hub.readers
    by_hand.loop.in_flight.close()
    assert fileno not in by_hand.hub.readers


def test_loop_reads_a_reply_after_its_reader_was_replaced(by_hand):
    by_hand.loop.in_flight.send([("ECHO", "one")])
    by_hand.loop.watch()
    by_hand.hub.add_reader(by_hand.loop.in_flight.socket.fileno(), lambda: None)
    by_hand.iterate(2)
    assert [b"one"] in by_hand.seen


def test_loop_reads_a_late_reply_without_a_reader(by_hand, monkeypatch):
    by_hand.loop.in_flight.send([("ECHO", "one")])
    monkeypatch.setattr(by_hand.loop, "watch", lambda: None)
    by_hand.loop.in_flight._connection.socket_timeout = 0.05
    time.sleep(0.1)
    by_hand.iterate()
    assert by_hand.seen[0] == [b"one"]


def test_another_thread_wakes_a_waiting_loop(by_hand):
    by_hand.hub.timer.call_after(30, lambda: None)  # otherwise the loop would wait for this timer
    by_hand.iterate()  # kombu's hub first reads its own sockets
    waits = threading.Thread(target=by_hand.iterate)
    waits.start()
    by_hand.loop.wake()
    waits.join(10)
    assert not waits.is_alive()


def test_wake_is_skipped_while_a_reply_is_pending(by_hand, redis_client, monkeypatch):
    woken = []
    monkeypatch.setattr(by_hand.loop._waker, "wake", lambda: woken.append(1))
    by_hand.loop.in_flight.send([("ECHO", "one")])
    by_hand.loop.wake()
    assert not woken
    by_hand.loop.in_flight.receive()
    by_hand.loop.wake()
    assert woken


def test_loop_recognises_its_own_thread(by_hand):
    elsewhere = []
    asking = threading.Thread(target=lambda: elsewhere.append(by_hand.loop.is_here))
    asking.start()
    asking.join()
    assert by_hand.loop.is_here
    assert elsewhere == [False]
