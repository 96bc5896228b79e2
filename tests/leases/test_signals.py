"""A cold shutdown in a signal handler can need a lock that the interrupted thread holds."""

import os
import signal
from unittest.mock import Mock

import pytest

from celery_affinity.background import PeriodicThread
from celery_affinity.leases.job_metrics import MetricDeltas
from celery_affinity.leases.outbox import Outbox
from celery_affinity.leases.prefetch import Prefetch
from celery_affinity.worker import pool
from celery_affinity.worker.event_loop import _Waker

from ..support.members import claims_of


def claims():
    return (table := claims_of())._lock, table.unfinished


def outbox():
    return (reports := Outbox(claims_of(), Mock()))._lock, reports.repeat_acks


def lookahead():
    return (prefetch := Prefetch(3, 0.02))._lock, lambda: "tag" in prefetch


def sums():
    deltas = MetricDeltas()
    deltas.ran("pdf", "done", 1)
    return deltas._lock, lambda: list(deltas.pages())


def waker():
    return (woken := _Waker())._lock, woken.wake


def repeating():
    return (heartbeats := PeriodicThread("heartbeats", Mock(), 5.0))._condition, heartbeats.wake


def unclaimed_requests():
    return pool._lock, pool.unclaimed_requests


@pytest.mark.timeout(20)
@pytest.mark.parametrize("part", [claims, outbox, lookahead, sums, waker, repeating, unclaimed_requests])
def test_signal_handler_acquires_the_lock_its_thread_holds(part):
    lock, act = part()
    done = []
    before = signal.signal(signal.SIGUSR1, lambda *_: done.append(act()))
    try:
        with lock:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert len(done) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
