"""The parts of a fleet member, without threads and without Celery."""

import threading
from types import SimpleNamespace
from unittest.mock import Mock

from celery_affinity.leases.claims import ClaimTable
from celery_affinity.leases.lease import Lease
from celery_affinity.leases.outbox import EndReporter
from celery_affinity.leases.prefetch import Prefetch
from celery_affinity.policy.slot_math import NOTHING


def claims_of(worker="worker", inbox="inbox"):
    return ClaimTable(worker, inbox, Lease(30))


class Pool:
    """A pool with *slots* slots. *has* returns True if the pool has a request."""

    def __init__(self, slots=1, *, forks=False, blocks_the_loop=False, has=lambda request: False):
        self.slots, self.forks, self.blocks_the_loop = slots, forks, blocks_the_loop
        self.still_has = has
        self.stops, self.stops_by_force = "force", True

    def size(self):
        return self.slots

    def unclaimed(self):
        return 0


class Host:
    """A worker whose event loop sends on *in_flight*, or None for another thread or a worker without a loop."""

    def __init__(self, in_flight=None):
        self.in_flight = in_flight
        self.woken = 0
        self.delivered, self.fenced = [], []
        self.deliver, self.fence = self.delivered.extend, self.fenced.extend

    def wake(self):
        self.woken += 1
        return True

    def limits_rate_of(self, task):
        return False

    def start_next(self):
        pass

    def wake_in(self, pause_s):
        pass

    def heartbeat(self, *, loop_runs):
        return None


def reporting_of(claims=None, *, scheduler=None, lookahead=0, pool=None, host=None, heartbeats=None):
    return EndReporter(
        scheduler,
        claims or claims_of(),
        Prefetch(lookahead, 0.02),
        pool=pool or Pool(),
        host=host or Host(),
        heartbeats=heartbeats or Mock(),
    )


def inbox_of(reporting, schedules=lambda queue: True):
    """Return the part of a worker that a channel uses."""
    claims = reporting.claims
    return SimpleNamespace(
        worker=claims.worker,
        key=claims.inbox,
        drained=claims.drained,
        reporting=reporting,
        reporting_of=lambda tag: reporting,
        schedules=schedules,
        serve=Mock(),
        loop_ran=Mock(),
    )


def report_end(worker, in_flight):
    worker.outbox.send(worker.scheduler, in_flight, may_hold=NOTHING)
    return worker.outbox.receive(worker.scheduler)


def in_another_thread(call):
    got = []
    thread = threading.Thread(target=lambda: got.append(call()))
    thread.start()
    thread.join(10)
    return got[0]
