"""Rate limits in a worker without a pool and without a server: jobs that start, wait, or go back."""

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
from celery_affinity.membership.recalled import Recalled
from celery_affinity.server.replies import Claim
from celery_affinity.worker.following import Following
from celery_affinity.worker.rate_limits import Limits

from ..support.members import Pool, reporting_of


def consumer_with(bucket, starts):
    """Return the part of Celery's consumer that has token buckets, with *bucket* for "mail"."""
    consumer = SimpleNamespace(
        task_buckets={"mail": bucket},
        timer=Mock(),
        _limit_order=0,
        reset_rate_limits=None,
        on_task_request=starts,
    )
    for name in ("_schedule_bucket_request", "_limit_move_to_pool", "_limit_task"):
        setattr(consumer, name, MethodType(getattr(Consumer, name), consumer))
    return consumer


class Bucket:
    """A consumer with a token bucket: four jobs came, one found a token."""

    def __init__(self, rate=0.001, with_keys=""):
        self.started, self.told, self.given_back = [], [], []
        self.avoided, self.avoided_then = frozenset(), []
        self.room = 5
        self.bucket = TokenBucket(rate)
        self.consumer = consumer_with(self.bucket, starts=self.started.append)
        self.claims = {
            tag: Held(tag, fence, "mail") for tag, fence in [("a", "9"), ("b", "11"), ("c", "10"), ("d", "8")]
        }
        members = SimpleNamespace(
            lend=self.lend,
            claims=SimpleNamespace(find=self.claims.get),
            give_back=self.give_back,
            recalled=Recalled(),
        )
        Limits(self.consumer, members, SimpleNamespace(room=lambda: self.room))
        for tag in self.claims:
            self.consumer._limit_task(Request(tag, holds_a_key=tag in with_keys), self.bucket, 1)

    def lend(self, waiting, avoided):
        self.told.append(waiting)
        self.avoided = avoided

    def give_back(self, tags):
        self.given_back.extend(tags)
        self.avoided_then.append(self.avoided)

    def a_token_comes(self):
        self.bucket._tokens = 1
        self.consumer._schedule_bucket_request(self.bucket)

    def waiting(self):
        return [request._tag for request, _ in self.bucket.contents]


class Request(SimpleNamespace):
    __hash__ = object.__hash__

    def __init__(self, tag, holds_a_key=False):
        super().__init__(_tag=tag, _reporting=True, id=tag, name="mail", expires=None, holds_a_key=holds_a_key)


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


def test_a_job_that_would_hold_a_key_for_long_goes_back_and_no_more_of_its_type_come_until_a_token_is_near():
    limits = Bucket(rate=0.1, with_keys="abc")
    assert ([each._tag for each in limits.started], limits.given_back) == (["a"], ["b", "c"])
    assert limits.waiting() == ["d"]
    assert limits.avoided == {"mail"}
    assert all(avoided == {"mail"} for avoided in limits.avoided_then), "or the jobs would come again at once"
    wanted = [call.args for call in limits.consumer.timer.call_after.call_args_list if call.args[2] == ("mail",)]
    ((wait_s, want, args),) = wanted
    assert 8 < wait_s < 9.1, "a token comes every 10 s, and is waited for in the last of them"
    want(*args)
    assert limits.avoided == frozenset()


def test_a_job_with_a_key_waits_for_a_token_that_is_near():
    limits = Bucket(rate=10, with_keys="abcd")
    assert (limits.waiting(), limits.given_back, limits.avoided) == (["d", "c", "b"], [], frozenset())


class Worker:
    """The parts of a worker that decide which jobs start, with a limited type, "mail"; no pool, no server."""

    def __init__(self, slots, types):
        self.running = []
        self.limited = consumer_with(TokenBucket(0.001), starts=self.running.append)
        self.limited.task_buckets["mail"]._tokens = 0
        self.limited.app = Celery(set_as_current=False)
        pool = Pool(slots)
        self.reporting = reporting_of(lookahead=8, pool=pool)
        self.claims = self.reporting.claims
        self.members = members = Membership.__new__(Membership)
        members._heartbeats, members._rejoin, members._pool = Mock(), False, pool
        members.claims, members.reporting, members.lookahead = self.claims, self.reporting, self.reporting.lookahead
        members.capacity = Capacity(pool, self.claims)
        members.capacity.types = types
        members.recalled = Recalled()
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
        for claim, *_ in list(self.reporting.lookahead._waiting)[:1]:
            self.claims.void([(claim.job_id, claim.fence)])

    def end_one(self):
        if self.running:
            self.reporting.end(self.running.pop()._tag)

    def types_ahead(self):
        return [claim.type for claim, *_ in self.reporting.lookahead._waiting]


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
        assert worker.claims.let_go(worker.claims.given_up()) == [("job2", "2")]
    assert worker.types_ahead() == []
    assert worker.claims.unfinished() == 1
