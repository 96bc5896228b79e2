"""A connection is registered with kombu's event loop once, and again only if it is new, dropped or has a new reader."""

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


@pytest.mark.parametrize(("readers", "is_dropped", "added"), [("aaa", False, 1), ("ab", True, 2), ("ab", False, 2)])
def test_connection_is_added_again_only_if_dropped_or_changed(hub, ends, watched, readers, is_dropped, added):
    calls = []
    for reader in readers:
        watched.add_reader(ends[0].fileno(), calls.append, reader)
        if is_dropped and reader == "a":
            hub.remove(ends[0].fileno())
    assert hub.added == added
    ends[1].send(b"!")
    hub.run_once()
    assert calls == [readers[-1]]


def test_reused_file_descriptor_keeps_its_new_reader(hub, ends, watched):
    calls = []
    elsewhere = socket.socketpair()
    hub.add_reader(elsewhere[0].fileno(), calls.append, "another's")
    watched.add_reader(elsewhere[0].fileno(), calls.append, "closed long ago")
    elsewhere[1].send(b"!")
    hub.run_once()
    assert calls == ["another's"]
    for each in elsewhere:
        each.close()


def test_single_watch_forwards_other_attributes(hub, watched):
    assert watched.on_tick is hub.on_tick
