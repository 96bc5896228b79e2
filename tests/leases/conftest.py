"""A worker whose claims a test reports to a real server step by step."""

import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import redis

from celery_affinity.leases.held_claim import ACKED
from celery_affinity.leases.outbox import Outbox
from celery_affinity.scheduler.messages import Claim
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.members import claims_of, report_end
from ..support.scripted_fleet import ScriptedFleet


class Worker:
    """The claims of a worker that has one job, while a second job waits for its slot."""

    def __init__(self, server):
        self.pool = redis.ConnectionPool.from_url(server.url)
        self.scheduler = Scheduler(redis.Redis(connection_pool=self.pool), Keys())
        self.fleet = ScriptedFleet(self.scheduler)
        self.fleet.join("worker", "pdf")
        for job in ("first", "second"):
            self.fleet.publish(job, "pdf")
        self.claims = claims_of()
        self.claims.sums = Mock(are_urgent=False)
        self.heartbeats = Mock()
        self.outbox = Outbox(self.claims, self.heartbeats)
        self.claims.lease.renew(asked_at_s=time.monotonic(), timeout_s=30)
        (claim,) = self.fleet.inbox("worker")
        tag = self.claims.hold(claim)
        self.claims.set_outcome(tag, ACKED)  # a claim without a request ends here

    def held_there(self):
        return set(self.fleet.claims("worker"))


@pytest.fixture
def worker(server, redis_client):
    worker = Worker(server)
    yield worker
    worker.pool.disconnect()


class Acking(Worker):
    """A worker whose only job starts next and acks early."""

    def __init__(self, server, in_flight):
        super().__init__(server)
        report_end(self, in_flight)  # the connection works; the second job arrives
        self.claims.forget(dict(self.claims._held))
        (self.number,) = self.fleet.claims("worker").items()
        self.tag = self.claims.hold(Claim(*self.number, "pdf", 0, 0, b""))
        self.claims.bind(self.tag, SimpleNamespace(name="task", id="one", size=None))
        self.claims.set_outcome(self.tag, ACKED)

    def is_acked(self):
        return self.scheduler.client.hget(self.scheduler.keys.key("job", self.number[0]), "acked") == b"1"

    def sends(self, in_flight):
        return self.outbox.send_acks(self.scheduler, in_flight)

    def ends(self, in_flight):
        self.claims.end(self.tag)
        return report_end(self, in_flight)


@pytest.fixture
def acking(server, redis_client, in_flight):
    acking = Acking(server, in_flight)
    yield acking
    acking.pool.disconnect()
