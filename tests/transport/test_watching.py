"""kombu's event loop hears of a connection once, and again only if that is new, dropped, or read otherwise."""

import socket

import pytest
from kombu.asynchronous.hub import Hub

from celery_affinity.transport.transport import SingleWatch


class CountingHub(Hub):
    added = 0

    def add_reader(self, *args):
        self.added += 1
        return super().add_reader(*args)


@pytest.fixture
def hub():
    hub = CountingHub()
    yield hub
    hub.close()


@pytest.fixture
def ends():
    pair = socket.socketpair()
    yield pair
    for each in pair:
        each.close()


@pytest.fixture
def watched(hub, ends):
    return SingleWatch(hub, lambda: ends)


def test_a_connection_is_added_once(hub, ends, watched):
    heard = []
    for _ in range(3):
        watched.add_reader(ends[0].fileno(), heard.append, "first")
    assert hub.added == 1
    ends[1].send(b"!")
    hub.run_once()
    assert heard == ["first"]


def test_one_that_the_loop_has_dropped_is_added_again(hub, ends, watched):
    heard = []
    watched.add_reader(ends[0].fileno(), heard.append, "first")
    hub.remove(ends[0].fileno())
    watched.add_reader(ends[0].fileno(), heard.append, "again")
    ends[1].send(b"!")
    hub.run_once()
    assert heard == ["again"]


def test_what_reads_it_can_change(hub, ends, watched):
    heard = []
    watched.add_reader(ends[0].fileno(), heard.append, "first")
    watched.add_reader(ends[0].fileno(), heard.append, "second")
    ends[1].send(b"!")
    hub.run_once()
    assert heard == ["second"]


def test_the_number_of_a_closed_one_is_left_to_whom_it_belongs(hub, ends, watched):
    heard = []
    elsewhere = socket.socketpair()
    hub.add_reader(elsewhere[0].fileno(), heard.append, "another's")
    watched.add_reader(elsewhere[0].fileno(), heard.append, "closed long ago")
    elsewhere[1].send(b"!")
    hub.run_once()
    assert heard == ["another's"]
    for each in elsewhere:
        each.close()


def test_all_else_is_the_loop_s(hub, watched):
    assert watched.on_tick is hub.on_tick
