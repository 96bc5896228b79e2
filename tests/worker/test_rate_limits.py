"""Rate limits: limited jobs hold up no other job on their worker; no limited job is lost, or out of order."""

# Longer than 300 lines: the cases share a limited worker, which takes seconds to start.

import json
import time
from itertools import count
from types import MethodType, SimpleNamespace
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.worker.consumer import Consumer
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.limits import TokenBucket

from celery_affinity.membership.capacity import Capacity
from celery_affinity.membership.held import RETURNED, Held
from celery_affinity.membership.membership import Membership
from celery_affinity.rules.keys import Keys
from celery_affinity.rules.lending import Lending, lending
from celery_affinity.server.replies import Claim
from celery_affinity.transport.reach import explain
from celery_affinity.worker.following import Following
from celery_affinity.worker.rate_limits import Limits

from ..support import since
from ..support.apps import APP
from ..support.members import Pool, telling_of
from ..support.processes import start_worker, wait_until

OURS, STOCK = "celery_affinity:Transport", "redis"


def starts(fleet, prefix):
    return [each for each in fleet.ledger.entries() if each.event == "start" and each.job.startswith(prefix)]


def jobs(fleet, prefix):
    return [each.job for each in starts(fleet, prefix)]


def send(fleet, task, number, *args):
    return [fleet.tasks[task].delay(f"{task}-{each}", *args) for each in range(number)]


def named(prefix, number):
    return [f"{prefix}-{each}" for each in range(number)]


def worker_of(fleet, name):
    return next(each for each in fleet.report.status().workers if each.name.startswith(name))


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_limited_type_leaves_the_slots_to_others_and_goes_at_its_rate_in_order(fleet, pool):
    worker = fleet.start("worker", "mail", "pdf", pool=pool, concurrency=2, RATE_LIMIT="5/s")
    mails = send(fleet, "mail", 15)
    wait_until(lambda: worker_of(fleet, "worker").withdrawn == ["mail"], 5, "enough wait in the worker")
    for number in range(10):
        assert fleet.tasks["pdf"].delay(f"pdf-{number}").get(timeout=1) == f"pdf-{number}"
    assert len(starts(fleet, "mail")) < 15, "they still go"
    for result in mails:
        result.get(timeout=10)
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")
    assert worker_of(fleet, "worker").withdrawn == []
    assert jobs(fleet, "mail") == named("mail", 15)
    times_s = [each.time_s for each in starts(fleet, "mail")]
    assert 14 / 5 * 0.9 < times_s[-1] - times_s[0] < 14 / 5 * 1.5
    assert set(fleet.ledger.starts().values()) == {1}
    assert "no longer" not in worker.log()


def wait_of_an_unlimited_job_s(fleet, transport):
    """Return how long a job of another type waits for a worker with two slots and 20 limited ones."""
    env = {"LEDGER": str(fleet.ledger.path), "TRANSPORT": transport, "RATE_LIMIT": "24/m"}
    worker = start_worker(APP, fleet.url, ["mail", "pdf"], concurrency=2, env=env)
    worker.wait_ready(30)
    with Celery("producer", broker=fleet.url, backend=fleet.url, set_as_current=False) as producer:
        producer.conf.broker_transport = transport
        for each in range(20):
            producer.send_task(f"{APP}.mail", (f"{transport}-{each}",), queue="mail")
        at_once = since.LIMITED_AT_ONCE if transport == STOCK else 1
        wait_until(lambda: len(starts(fleet, f"{transport}-")) == at_once, 10, "they go")
        if transport == STOCK:
            wait_until(lambda: fleet.redis.hlen("unacked") == 8, 10, "it has prefetched four for each slot")
        sent_s = time.time()
        producer.send_task(f"{APP}.pdf", (f"unlimited-{transport}",), queue="pdf").get(timeout=20)
    worker.end()
    return starts(fleet, f"unlimited-{transport}")[0].time_s - sent_s


def test_an_unlimited_job_does_not_wait_as_it_does_with_stock_celery(fleet):
    stock_s = wait_of_an_unlimited_job_s(fleet, STOCK)
    fleet.redis.flushall()
    ours_s = wait_of_an_unlimited_job_s(fleet, OURS)
    print(f"an unlimited job beside 20 limited ones waits {stock_s:.3f} s with stock Celery, {ours_s:.3f} s here")
    assert ours_s < 0.5 < 1 < stock_s


def test_what_waits_for_a_limit_goes_back_at_a_shutdown(fleet):
    worker = fleet.start("leaving", "mail", "pdf", concurrency=2, RATE_LIMIT="1/m")
    send(fleet, "mail", 5)
    running = fleet.tasks["pdf"].delay("running", 1)
    wait_until(lambda: set(fleet.ledger.starts()) == {"mail-0", "running"}, 10, "both run")
    wait_until(lambda: worker_of(fleet, "leaving").withdrawn == ["mail"], 5, "enough wait in the worker")
    worker.term()
    assert worker.wait(15) == 0
    assert running.get(timeout=1) == "running"
    (mail, _) = (
        fleet.report.status().types if len(fleet.report.status().types) == 2 else (*fleet.report.status().types, 0)
    )
    assert mail.pending == 4
    fleet.start("next", "mail", pool="solo")
    wait_until(lambda: jobs(fleet, "mail") == named("mail", 5), 10, "all ran, in order")


def test_a_job_whose_slot_is_taken_when_its_token_comes_goes_to_who_has_one(fleet):
    worker = fleet.start("worker", "mail", "pdf", pool="prefork", concurrency=2, RATE_LIMIT="1/s")
    send(fleet, "mail", 3)
    send(fleet, "pdf", 2, 60)
    wait_until(lambda: len(starts(fleet, "pdf")) == 2, 5, "they got the slots that were lent")
    wait_until(lambda: "given back" in worker.log(), 3, "no slot is left for the next")
    assert len(starts(fleet, "mail")) == 1
    other = fleet.start("other", "mail", pool="solo")
    wait_until(lambda: len(starts(fleet, "mail")) == 3, 5, "another runs them")
    assert {each.pid for each in starts(fleet, "mail")[1:]} == {other.pid}
    assert jobs(fleet, "mail") == named("mail", 3)


@pytest.mark.parametrize(("pool", "limit"), [("prefork", "50/s"), ("threads", "0")])
def test_a_new_limit_counts_for_what_waits_already(fleet, pool, limit):
    fleet.start("worker", "mail", "pdf", pool=pool, concurrency=2, RATE_LIMIT="1/m")
    send(fleet, "mail", 8)
    wait_until(lambda: worker_of(fleet, "worker").withdrawn == ["mail"], 5, "they wait")
    assert fleet.app.control.rate_limit(f"{APP}.mail", limit, reply=True)[0].popitem()[1]["ok"]
    wait_until(lambda: len(starts(fleet, "mail")) == 8, 5, "they go")
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")
    assert sorted(jobs(fleet, "mail")) == named("mail", 8)
    assert fleet.app.control.rate_limit(f"{APP}.mail", "1/m", reply=True)[0].popitem()[1]["ok"]
    send(fleet, "mail", 8)
    wait_until(lambda: worker_of(fleet, "worker").withdrawn == ["mail"], 5, "they wait again")
    assert fleet.tasks["pdf"].delay("pdf").get(timeout=1) == "pdf"


def test_a_type_counts_as_served_while_its_worker_has_withdrawn_from_it(fleet):
    fleet.start("worker", "mail", "pdf", pool="threads", concurrency=2, RATE_LIMIT="1/m")
    send(fleet, "mail", 6)
    wait_until(lambda: worker_of(fleet, "worker").withdrawn == ["mail"], 5, "it withdraws")
    last = fleet.tasks["mail"].delay("last")
    status = fleet.report.status()
    assert "unserved" not in status.counters
    assert [(each.type, each.slots, each.unserved) for each in status.types] == [("mail", 2, False), ("pdf", 2, False)]
    found = explain(fleet.app, last.id)
    assert found.waiting.blocked_by.startswith("a rate limit: ")


def test_a_lost_connection_gives_back_what_waits_and_runs_nothing_twice(fleet):
    worker = fleet.start("worker", "mail", "pdf", pool="prefork", concurrency=2, RATE_LIMIT="2/s")
    send(fleet, "mail", 6)
    wait_until(lambda: worker_of(fleet, "worker").withdrawn == ["mail"], 5, "they wait")
    fleet.redis.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: "Connection to broker lost" in worker.log(), 10, "it notices")
    wait_until(lambda: len(starts(fleet, "mail")) == 6, 15, "all ran")
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")
    assert sorted(jobs(fleet, "mail")) == named("mail", 6)


def test_a_worker_with_no_other_types_stays_with_its_limited_one(fleet):
    fleet.start("worker", "mail", pool="threads", concurrency=2, RATE_LIMIT="1/m")
    send(fleet, "mail", 6)
    claims = Keys().key("claims", worker_of(fleet, "worker").id)
    wait_until(
        lambda: len(starts(fleet, "mail")) == 1 and fleet.redis.hlen(claims) == 3, 20, "one slot is lent, not both"
    )
    assert fleet.free_slots() == 0
    assert worker_of(fleet, "worker").withdrawn == []


# -- beside jobs that are taken ahead


def _ahead(fleet, name, *queues, pool="threads", **options):
    conf = json.dumps({"affinity_lookahead": 8})
    return fleet.start(name, *queues, pool=pool, concurrency=2, RATE_LIMIT="1/m", CONF=conf, **options)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_slots_that_limited_jobs_lend_are_used_with_look_ahead(fleet, pool):
    _ahead(fleet, "worker", "mail", "pdf", pool=pool)
    send(fleet, "mail", 5)
    wait_until(lambda: jobs(fleet, "mail"), 10, "the first one runs")
    sent_s = time.time()
    for result in send(fleet, "pdf", 3):
        result.get(timeout=5)
    print(f"with five limited jobs before them, three others ran within {time.time() - sent_s:.3f} s")
    assert jobs(fleet, "mail") == ["mail-0"]
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")


def test_what_waits_with_look_ahead_stays_within_reach_of_others(fleet):
    _ahead(fleet, "holder", "mail")
    send(fleet, "mail", 9)
    wait_until(lambda: jobs(fleet, "mail"), 10, "the first one runs")
    other = fleet.start("other", "mail", pool="solo")
    wait_until(lambda: len(jobs(fleet, "mail")) >= 6, 10, "another without a limit gets those that do not wait there")
    assert {each.pid for each in starts(fleet, "mail")[1:]} == {other.pid}


def consumer_with(bucket, starts):
    """Return the part of Celery's consumer that has token buckets, with *bucket* for "mail"."""
    consumer = SimpleNamespace(
        task_buckets={"mail": bucket},
        timer=SimpleNamespace(call_after=lambda *_, **__: None),
        _limit_order=0,
        reset_rate_limits=None,
        on_task_request=starts,
    )
    for name in ("_schedule_bucket_request", "_limit_move_to_pool", "_limit_task"):
        setattr(consumer, name, MethodType(getattr(Consumer, name), consumer))
    return consumer


class Bucket:
    """A consumer with a token bucket: four jobs came, one found a token."""

    def __init__(self):
        self.started, self.told, self.given_back = [], [], []
        self.room = 5
        self.bucket = TokenBucket(0.001)
        self.consumer = consumer_with(self.bucket, starts=self.started.append)
        self.claims = {
            tag: Held(tag, fence, "mail") for tag, fence in [("a", "9"), ("b", "11"), ("c", "10"), ("d", "8")]
        }
        members = SimpleNamespace(
            lend=self.told.append, claims=SimpleNamespace(find=self.claims.get), give_back=self.given_back.extend
        )
        Limits(self.consumer, members, SimpleNamespace(room=lambda: self.room))
        for tag in self.claims:
            self.consumer._limit_task(Request(tag), self.bucket, 1)

    def a_token_comes(self):
        self.bucket._tokens = 1
        self.consumer._schedule_bucket_request(self.bucket)

    def waiting(self):
        return [request._tag for request, _ in self.bucket.contents]


class Request(SimpleNamespace):
    __hash__ = object.__hash__

    def __init__(self, tag):
        super().__init__(_tag=tag, _telling=True, id=tag, name="mail", expires=None)


def test_what_waits_goes_in_the_order_in_which_it_was_claimed():
    limits = Bucket()
    assert [request._tag for request in limits.started] == ["a"], "it had come when there was a token"
    assert limits.waiting() == ["d", "c", "b"]
    assert limits.told[-1] == {"mail": 3}
    limits.a_token_comes()
    assert limits.started[-1]._tag == "d"
    assert limits.told[-1] == {"mail": 2}


def test_when_no_slot_is_left_all_that_waits_goes_back_or_it_would_overtake_the_first():
    limits = Bucket()
    limits.room = -3  # the three waiting jobs have lent their slots
    limits.a_token_comes()
    assert limits.given_back == ["d", "c", "b"]
    assert (len(limits.started), limits.waiting(), limits.told[-1]) == (1, [], {})


def test_a_job_that_came_for_a_slot_that_is_needed_again_goes_back():
    limits = Bucket()
    limits.room = -3
    limits.consumer.on_task_request(Request("another"))
    assert limits.started[-1]._tag == "another", "it has the last slot"
    limits.room = -4
    limits.consumer.on_task_request(Request("one more"))
    assert limits.given_back == ["one more"]
    assert limits.started[-1]._tag == "another"


class Worker:
    """The parts of a worker that decide which jobs start, with a limited type, "mail"; no pool, no server."""

    def __init__(self, slots, types):
        self.running = []
        self.limited = consumer_with(TokenBucket(0.001), starts=self.running.append)
        self.limited.task_buckets["mail"]._tokens = 0
        self.limited.app = Celery(set_as_current=False)
        pool = Pool(slots)
        self.telling = telling_of(lookahead=8, pool=pool)
        self.claims = self.telling.claims
        self.members = members = Membership.__new__(Membership)
        members._beats, members._rejoin, members._pool = Mock(), False, pool
        members.claims, members.telling, members.lookahead = self.claims, self.telling, self.telling.lookahead
        members.capacity = Capacity(pool, self.claims)
        members.capacity.types = types
        self.host = SimpleNamespace(loop=Mock(), wake=Mock())
        self.following = Following(self.limited, members, self.host)
        self.following.begin(SimpleNamespace(consume=self.consume))
        self.slots, self.limits = slots, Limits(self.limited, members, self.following)
        self.numbers = count(1)

    def claim(self, type_):
        number = next(self.numbers)
        return Claim(f"job{number}", str(number), type_, 0, 0, b"")

    def hold(self, type_):
        self.following._hold(self.claim(type_))

    def consume(self, claim, tag):
        if claim.type == "mail":
            self.limited._limit_task(Request(tag), self.limited.task_buckets["mail"], 1)
        elif self.claims.may_start(tag):
            self.limited.on_task_request(Request(tag))

    def turn(self):
        """Let the loop turn until nothing wakes it any more."""
        self.host.wake.called = True
        while self.host.wake.called:
            self.host.wake.reset_mock()
            self.following._start_what_has_a_slot()
        assert len(self.running) <= self.slots

    def lose_one(self):
        """Void a claim that is ahead: another worker has the job by now."""
        for claim, _ in list(self.telling.lookahead._waiting)[:1]:
            self.claims.void([(claim.job_id, claim.fence)])

    def end_one(self):
        if self.running:
            self.telling.end(self.running.pop()._tag)

    def types_ahead(self):
        return [claim.type for claim, _ in self.telling.lookahead._waiting]


@given(
    slots=st.integers(1, 4),
    types=st.sampled_from([("mail", "pdf"), ("mail",)]),
    moves=st.lists(st.sampled_from(["mail", "pdf", "pdf", "end", "lose", "inbox"]), max_size=24),
)
def test_no_slot_is_idle_beside_a_job_that_is_ahead_and_could_start(slots, types, moves):
    worker = Worker(slots, types)
    for move in moves:
        if move == "end":
            worker.end_one()
        elif move == "lose":
            worker.lose_one()
        elif move == "inbox":
            worker.following.receive(worker.claim("mail"))
        elif move in types:
            worker.hold(move)
        worker.turn()
        waiting = worker.members.capacity._waiting["mail"]
        others_wait = slots // 2 if types == ("mail",) else waiting  # beyond these the worker takes no more
        is_full = len(worker.running) + waiting - others_wait >= slots
        assert is_full or not worker.types_ahead()
        assert len(worker.running) + waiting <= slots + worker.members.capacity.lent
        assert "mail" not in worker.types_ahead() or types == ("mail",) or waiting <= slots // 2
        given_back = {worker.claims.find(tag).type for tag in worker.claims._given_up}
        assert given_back <= ({"mail"} if len(types) > 1 else set()), "only what others may start sooner"


@pytest.mark.parametrize("before", ["a drain", "a cancelled consumer"])
def test_what_is_ahead_and_will_not_start_here_goes_back_though_all_slots_are_busy(before):
    worker = Worker(1, ("mail", "pdf"))
    worker.hold("pdf")
    worker.turn()
    assert len(worker.running) == 1
    if before == "a drain":
        worker.claims.drained = True
        worker.hold("pdf")  # this job was on its way
        assert [held.outcome for held in worker.claims._ends.values()] == [RETURNED]
    else:
        worker.hold("pdf")
        worker.following.serve("pdf", False)
        assert worker.claims.let_go() == [("job2", "2")]
    assert worker.types_ahead() == []
    assert worker.claims.unfinished() == 1


def test_how_many_slots_are_lent():
    assert lending({}, ["a", "b"], 4) == Lending(0, frozenset())
    assert lending({"a": 2}, ["a", "b"], 4) == Lending(2, frozenset())
    assert lending({"a": 3}, ["a", "b"], 4) == Lending(3, {"a"})
    assert lending({"a": 2, "b": 1}, ["a", "b", "c"], 4) == Lending(3, {"a", "b"})
    assert lending({"a": 3}, ["a"], 4) == Lending(2, frozenset()), "nobody else could use them"
    assert lending({"a": 1}, ["a"], 1) == Lending(0, frozenset())
    assert lending({"gone": 3}, ["b"], 4) == Lending(3, frozenset()), "a queue that was cancelled meanwhile"
