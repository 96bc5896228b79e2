"""The parts of a worker that select the next jobs, without pool and server; type "mail" has a rate limit."""

from itertools import count
from types import SimpleNamespace
from unittest.mock import Mock

from celery import Celery
from kombu.utils.limits import TokenBucket

from celery_affinity.leases.capacity import Capacity
from celery_affinity.leases.held_claim import FAILED, REJECTED
from celery_affinity.leases.member import Member
from celery_affinity.scheduler.messages import Claim
from celery_affinity.worker.consumer import AffinityConsumer
from celery_affinity.worker.job_feed import JobFeed
from celery_affinity.worker.rate_limits import RateLimits

from .members import Pool, reporting_of


class LimitingConsumer(AffinityConsumer):
    """The part of a consumer with token buckets: *bucket* for "mail". *starts* is called to start a task."""

    def __init__(self, bucket, starts):
        self.task_buckets, self.timer, self._limit_order = {"mail": bucket}, Mock(), 0
        self.affinity_made_ahead, self._affinity_start_task = [], starts
        self.on_task_request = self.affinity_start


class Request(SimpleNamespace):
    __hash__ = object.__hash__

    def __init__(self, tag, reporting, *, name="mail", holds_a_key=False):
        super().__init__(_tag=tag, _reporting=reporting, id=tag, name=name, expires=None, holds_a_key=holds_a_key)
        self.request_dict = {"properties": {}}


class Worker:
    def __init__(self, slots, types, *, makes=False):
        self.running, self.buried, self.makes = [], [], makes
        self.limited = LimitingConsumer(TokenBucket(0.001), starts=self.run)
        self.limited.task_buckets["mail"]._tokens = 0
        self.limited.app = Celery(set_as_current=False)
        pool = Pool(slots)
        self.reporter = reporting_of(lookahead=8, pool=pool, heartbeats=(heartbeats := Mock()))
        self.claims = self.reporter.claims
        self.member = member = Member.__new__(Member)
        member._heartbeats, member._rejoin, member._pool = heartbeats, False, pool
        member.claims, member.reporter, member.lookahead = self.claims, self.reporter, self.reporter.lookahead
        member.capacity = Capacity(pool, self.claims)
        member.capacity.types = types
        self.host = SimpleNamespace(loop=Mock(), wake=Mock(), goes_on=True)
        self.job_feed = JobFeed(self.limited, member, self.host, pool)
        self.job_feed.begin(SimpleNamespace(consume=self.consume, burying=self.burying))
        lending = SimpleNamespace(lend=member.lend, room=self.job_feed.room)
        self.slots, self.limits = slots, RateLimits(self.limited, lending)
        self.limited.affinity_limits = self.limits
        self.numbers = count(1)

    def claim(self, type_):
        number = next(self.numbers)
        return Claim(f"job{number}", str(number), type_, 0, 0, b"")

    def hold(self, type_):
        self.job_feed._prefetch(self.claim(type_))

    def consume(self, claim, tag, *, has_slot=True):
        if has_slot:
            self.claims.count_wait(tag, on_demand=False)
        request = Request(tag, self.reporter, name=claim.type)
        self.claims.bind(tag, request)
        if claim.type == "mail":
            self.limited._limit_task(request, self.limited.task_buckets["mail"], 1)
        else:
            self.limited.on_task_request(request)

    def burying(self, claim, tag, start):
        try:
            start()
        except ValueError:
            self.buried.append(claim.job_id)
            self.reporter.set_outcome(tag, REJECTED)
            self.reporter.end(tag, FAILED)

    def run(self, request):
        if self.claims.check_may_start(request._tag):
            self.running.append(request)

    def iterate(self):
        """Run loop iterations until nothing wakes the loop."""
        self.host.wake.called = True
        while self.host.wake.called:
            self.host.wake.reset_mock()
            self.job_feed._start_ready_jobs()
        if self.makes:
            self.job_feed._prebuild_requests()
        assert len(self.running) <= self.slots

    def lose_one(self):
        """Void a prefetched claim, as if another worker had claimed the job."""
        for claim, *_ in list(self.reporter.lookahead._waiting)[:1]:
            self.claims.void([(claim.job_id, claim.fence)])

    def end_one(self):
        if self.running:
            self.reporter.end(self.running.pop()._tag)

    def types_ahead(self):
        return [claim.type for claim, *_ in self.reporter.lookahead._waiting]
