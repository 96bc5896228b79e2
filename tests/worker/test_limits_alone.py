"""Rate limits in a worker without a pool and a server: jobs that start, wait, or are returned."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.limits import TokenBucket

from celery_affinity.leases.held_claim import RETURNED, HeldClaim
from celery_affinity.worker.rate_limits import RateLimits

from ..support.worker_alone import LimitingConsumer, Request, Worker


class Bucket:
    """A consumer with a token bucket: of four jobs, one got a token."""

    def __init__(self, rate=0.001, with_keys=""):
        self.started, self.told, self.given_back = [], [], []
        self.avoided, self.avoided_then = frozenset(), []
        self.room = 5
        self.bucket = TokenBucket(rate)
        self.consumer = LimitingConsumer(self.bucket, starts=self.started.append)
        self.claims = {
            tag: HeldClaim(tag, fence, "mail") for tag, fence in [("a", "9"), ("b", "11"), ("c", "10"), ("d", "8")]
        }
        claims = SimpleNamespace(find=self.claims.get, is_withdrawn=lambda tag: tag in self.withdrawn)
        self.withdrawn = ""
        self.reporting = SimpleNamespace(claims=claims, give_back=self.give_back)
        members = SimpleNamespace(lend=self.lend, room=lambda: self.room)
        self.consumer.affinity_limits = RateLimits(self.consumer, members)
        for tag in self.claims:
            self.consumer._limit_task(Request(tag, self.reporting, holds_a_key=tag in with_keys), self.bucket, 1)

    def lend(self, waiting, avoided):
        self.told.append(waiting)
        self.avoided = frozenset(avoided)

    def give_back(self, tags):
        self.given_back.extend(tags)
        self.avoided_then.append(self.avoided)

    def a_token_comes(self):
        self.bucket._tokens = 1
        self.consumer._schedule_bucket_request(self.bucket)

    def waiting(self):
        return [request._tag for request, _ in self.bucket.contents]


def test_waiting_jobs_start_in_claim_order():
    limits = Bucket()
    assert [request._tag for request in limits.started] == ["a"], "it had come when there was a token"
    assert limits.waiting() == ["d", "c", "b"]
    assert limits.told[-1] == {"mail": 3}
    limits.a_token_comes()
    assert limits.started[-1]._tag == "d"
    assert limits.told[-1] == {"mail": 2}


def test_all_waiting_jobs_are_returned_when_no_slot_remains():
    limits = Bucket()
    limits.room = -3  # the three waiting jobs have lent their slots
    limits.a_token_comes()
    assert limits.given_back == ["d", "c", "b"]
    assert (len(limits.started), limits.waiting(), limits.told[-1]) == (1, [], {})


def test_job_without_a_lent_slot_is_returned():
    limits = Bucket()
    limits.room = -3
    limits.consumer.on_task_request(Request("another", limits.reporting))
    assert limits.started[-1]._tag == "another", "it has the last slot"
    limits.room = -4
    limits.consumer.on_task_request(Request("one more", limits.reporting))
    assert limits.given_back == ["one more"]
    assert limits.started[-1]._tag == "another"


def test_claims_made_before_a_pause_are_returned():
    limits = Bucket()
    limits.withdrawn = "dc"
    limits.a_token_comes()
    assert limits.given_back == ["d", "c"]
    assert limits.started[-1]._tag == "b"


def test_job_is_returned_when_its_key_would_block_long():
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


def test_job_with_a_key_waits_for_a_near_token():
    limits = Bucket(rate=10, with_keys="abcd")
    assert (limits.waiting(), limits.given_back, limits.avoided) == (["d", "c", "b"], [], frozenset())


@given(
    slots=st.integers(1, 4),
    types=st.sampled_from([("mail", "pdf"), ("mail",)]),
    moves=st.lists(st.sampled_from(["mail", "pdf", "pdf", "end", "lose", "inbox"]), max_size=24),
    makes=st.booleans(),
)
def test_no_slot_idles_while_prefetched_jobs_could_start(slots, types, moves, makes):
    worker = Worker(slots, types, makes=makes)
    for move in moves:
        if move == "end":
            worker.end_one()
        elif move == "lose":
            worker.lose_one()
        elif move == "inbox":
            worker.job_feed.receive(worker.claim("mail"))
        elif move in types:
            worker.hold(move)
        worker.iterate()
        waiting = worker.member.capacity._waiting["mail"]
        others_wait = slots // 2 if types == ("mail",) else waiting  # the worker takes no more than these
        is_full = len(worker.running) + waiting - others_wait >= slots
        assert is_full or not worker.types_ahead()
        assert len(worker.running) + waiting <= slots + worker.member.capacity.lent
        assert "mail" not in worker.types_ahead() or types == ("mail",) or waiting <= slots // 2
        given_back = {worker.claims.find(tag).type for tag in worker.claims._given_up}
        assert given_back <= ({"mail"} if len(types) > 1 else set()), "only what others may start sooner"


@pytest.mark.parametrize("makes", [False, True])
@pytest.mark.parametrize("before", ["a drain", "a cancelled consumer"])
def test_prefetched_jobs_that_cannot_start_here_are_returned(before, makes):
    worker = Worker(1, ("mail", "pdf"), makes=makes)
    worker.hold("pdf")
    worker.iterate()
    assert len(worker.running) == 1
    if before == "a drain":
        worker.claims.drained = True
        worker.hold("pdf")  # this job was on its way
        assert [held.outcome for held in worker.claims._ends.values()] == [RETURNED]
    else:
        worker.hold("pdf")
        worker.job_feed.serve("pdf", False)
        assert worker.claims.release_given_up(worker.claims.given_up()) == [("job2", "2")]
    assert worker.types_ahead() == []
    assert worker.claims.unfinished() == 1
