"""A signal's handler does a cold shutdown: it may interrupt a thread that has a worker's lock, and need the lock."""

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
    held = claims_of()
    return held._lock, held.unfinished


def outbox():
    told = Outbox(claims_of(), Mock())
    return told._lock, told.repeat_acks


def lookahead():
    return (ahead := Prefetch(3, 0.02))._lock, lambda: "tag" in ahead


def sums():
    added_up = MetricDeltas()
    added_up.ran("pdf", "done", 1)
    return added_up._lock, lambda: list(added_up.pages())


def waker():
    return (woken := _Waker())._lock, woken.wake


def repeating():
    return (heartbeats := PeriodicThread("heartbeats", Mock(), 5.0))._condition, heartbeats.wake


def unclaimed_requests():
    return pool._lock, pool.unclaimed_requests


@pytest.mark.timeout(20)
@pytest.mark.parametrize("part", [claims, outbox, lookahead, sums, waker, repeating, unclaimed_requests])
def test_a_handler_takes_the_lock_that_its_thread_has(part):
    lock, act = part()
    done = []
    before = signal.signal(signal.SIGUSR1, lambda *_: done.append(act()))
    try:
        with lock:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert len(done) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
