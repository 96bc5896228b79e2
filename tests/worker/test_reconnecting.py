"""Waits between reconnection attempts, in any pool."""

import time
from types import SimpleNamespace
from unittest.mock import Mock, PropertyMock

import pytest
from kombu.utils import functional
from kombu.utils.functional import retry_over_time

from celery_affinity.worker import consumer
from celery_affinity.worker.pool import let_pauses_yield


class Server:
    """A server that refuses kombu's first *refuses* connection attempts."""

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
    """Return the simulated seconds waited before each attempt, and the pauses passed to Celery's callback."""
    passed, waited, now = [], [], SimpleNamespace(s=0.0)

    def sleeping(seconds):
        now.s += seconds
        waited[-1] += seconds

    def on_attempt(exc, pause_s):
        passed.append(pause_s)
        waited.append(0.0)

    monkeypatch.setattr(consumer, "sleep", sleeping)
    monkeypatch.setattr(consumer, "monotonic", lambda: now.s)

    def connect(conn):
        return conn.ensure_connection(on_attempt, 100)

    members = Mock()
    type(members).returns = PropertyMock(side_effect=lambda: returns(now.s))
    reconnects = consumer.ReconnectingConsumer(SimpleNamespace(pool=None), members)
    assert reconnects.connected(server, connect) is server
    return [round(seconds) for seconds in waited], passed


def test_reconnect_waits_like_celery_but_ends_with_the_outage(monkeypatch):
    assert reconnect(Server(3), monkeypatch, returns=lambda now_s: int(now_s >= 7)) == ([2, 4, 1], [2, 4, 6])


def test_reconnect_pauses_stay_when_only_others_are_answered(monkeypatch):
    assert reconnect(Server(4), monkeypatch, returns=lambda _: 0) == ([2, 4, 6, 8], [2, 4, 6, 8])


@pytest.mark.parametrize("is_green", [True, False])
def test_kombus_pauses_yield_to_other_greenlets(monkeypatch, is_green):
    """kombu imported `time.sleep` before gevent patched the function; other pools patch nothing."""
    before, patched = functional.sleep, Mock()
    monkeypatch.setattr(functional, "sleep", before)
    monkeypatch.setattr(time, "sleep", patched)
    let_pauses_yield(SimpleNamespace(is_green=is_green))
    assert functional.sleep is (patched if is_green else before)
