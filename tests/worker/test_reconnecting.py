"""Waits between tries to reconnect, in any pool."""

import time
from types import SimpleNamespace
from unittest.mock import Mock, PropertyMock

import pytest
from kombu.utils import functional
from kombu.utils.functional import retry_over_time

from celery_affinity.worker import consumer
from celery_affinity.worker.pool import let_pauses_yield


class Server:
    """A server that refuses the first *refuses* of kombu's tries to connect."""

    def __init__(self, refuses):
        self.refuses = refuses

    def ensure_connection(self, errback, max_retries, *intervals, callback=None):
        def connect():
            self.refuses -= 1
            if self.refuses >= 0:
                raise ConnectionError

        def on_error(exc, pauses, retries):
            pause = next(pauses)
            errback(exc, pause)
            return pause

        retry_over_time(connect, ConnectionError, (), {}, on_error, max_retries, *intervals, callback)
        return self


def reconnect(server, monkeypatch, returns):
    """Return, in s, the waits before the tries and the pauses told to Celery's callback. No real time passes."""
    said, waited, now = [], [], SimpleNamespace(s=0.0)

    def sleeping(seconds):
        now.s += seconds
        waited[-1] += seconds

    def said_and_tried(exc, pause_s):
        said.append(pause_s)
        waited.append(0.0)

    monkeypatch.setattr(consumer, "sleep", sleeping)
    monkeypatch.setattr(consumer, "monotonic", lambda: now.s)

    def connect(conn):
        return conn.ensure_connection(said_and_tried, 100)

    members = Mock()
    type(members).returns = PropertyMock(side_effect=lambda: returns(now.s))
    reconnects = consumer.ReconnectingConsumer(SimpleNamespace(pool=None), members)
    assert reconnects.connected(server, connect) is server
    return [round(each) for each in waited], said


def test_a_reconnect_waits_as_celery_does_and_no_longer_than_the_server_is_away(monkeypatch):
    assert reconnect(Server(3), monkeypatch, returns=lambda now_s: int(now_s >= 7)) == ([2, 4, 1], [2, 4, 6])


def test_a_server_that_answers_others_alone_is_not_asked_more_often(monkeypatch):
    assert reconnect(Server(4), monkeypatch, returns=lambda _: 0) == ([2, 4, 6, 8], [2, 4, 6, 8])


@pytest.mark.parametrize("is_green", [True, False])
def test_kombus_pauses_leave_other_greenlets_their_turn(monkeypatch, is_green):
    """kombu imported `time.sleep` before gevent patched the function; other pools patch nothing."""
    before, patched = functional.sleep, Mock()
    monkeypatch.setattr(functional, "sleep", before)
    monkeypatch.setattr(time, "sleep", patched)
    let_pauses_yield(SimpleNamespace(is_green=is_green))
    assert functional.sleep is (patched if is_green else before)
