"""A claim allows or refuses a start: after a silence, after a drain, and when another worker has the job."""

from types import SimpleNamespace

import pytest

from celery_affinity.leases import lease
from celery_affinity.leases.held_claim import ACKED, RETURNED
from celery_affinity.scheduler.messages import Claim

from ..support.members import Pool, claims_of


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(lease, "now_s", lambda: now[0])
    return now


@pytest.fixture
def claims(clock):
    return claims_of()


def claim(job_id, fence):
    return Claim(job_id, str(fence), "pdf", 0, 0, b"")


def test_unstarted_claim_is_returned_after_a_silence(clock, claims):
    tag = claims.hold(claim("job", 7))
    clock[0] += 29.9
    assert claims.check_may_start(tag)
    clock[0] += 0.2
    assert not claims.check_may_start(tag)
    _, ends = claims.pending_reports(10)
    assert [(held.number, held.outcome) for held in ends.values()] == [(("job", "7"), RETURNED)]


def test_lease_is_renewed_from_the_time_of_the_request(clock, claims):
    tag = claims.hold(claim("job", 7))
    claims.lease.renew(asked_at_s=80, timeout_s=30)
    clock[0] = 111
    assert not claims.check_may_start(tag)


def test_void_claims_neither_start_nor_arrive(claims):
    held = claims.hold(claim("held", 7))
    assert [each.job_id for each in claims.void_up_to(8)] == ["held"]
    assert claims.hold(claim("late", 8)) is None
    assert not claims.check_may_start(held)
    assert claims.held_claims() == []
    assert claims.check_may_start(claims.hold(claim("fresh", 9)))


def test_dropped_claim_does_not_start(claims):
    tag = claims.hold(claim("job", 7))
    claims.drop_unstarted(Pool())
    assert not claims.check_may_start(tag)


def test_claim_expires_by_the_servers_clock():
    claims = claims_of()
    now_us = 0
    claims.clock = SimpleNamespace(now_us=lambda: now_us)
    tag = claims.hold(Claim("job", "1", "pdf", 0, 0, b"", 1_000))
    for now_us in (999, 1_000):
        assert claims.left_us(tag) == 1_000 - now_us
    assert claims.left_us(claims.hold(Claim("other", "2", "pdf", 0, 0, b""))) is None
    assert claims.left_us("no such claim") is None
    claims.void([("job", "1")])
    assert claims.left_us(tag) is None, "another worker has it"


def test_worker_does_not_expire_jobs_after_a_silence(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(lease, "now_s", lambda: now[0])
    claims = claims_of()
    claims.clock.set(0)
    tag = claims.hold(Claim("job", "1", "pdf", 0, 0, b"", 1_000_000))
    now[0] += 29
    assert claims.left_us(tag) == -28_000_000
    now[0] += 2
    assert claims.left_us(tag) is None
    assert not claims.check_may_start(tag)


def test_claim_given_up_by_a_drain_does_not_start():
    claims = claims_of()
    runs, waits = (claims.hold(Claim(job, "7", "pdf", 0, 0, b"")) for job in ("runs", "waits"))
    claims.bind(runs, "a request")
    assert [held.job_id for held in claims.drain(Pool(has=lambda request: request == "a request"))] == ["waits"]
    assert (claims.check_may_start(runs), claims.check_may_start(waits)) == (True, False)
    assert claims.unfinished() == 1
    assert claims.release_given_up(claims.given_up()) == [("waits", "7")]
    assert claims.given_up() == frozenset()


def test_log_names_the_task_of_a_void_claim(claims, caplog):
    known, unread = claims.hold(claim("job-1", 7)), claims.hold(claim("job-2", 8))
    claims.bind(known, SimpleNamespace(name="shop.render", id="late-1"))
    claims.void_up_to(8)
    assert unread != known
    ends = "is no longer this worker's: any further work on it here does not count"
    assert caplog.messages == [f"Task shop.render[late-1] {ends}", f"Job job-2 {ends}"]


def test_stopping_worker_keeps_acked_claims(claims):
    acked, other = claims.hold(claim("acked", 7)), claims.hold(claim("other", 8))
    claims.bind(acked, object())
    claims.set_outcome(acked, ACKED)
    claims.close()
    assert claims.drop_unstarted(Pool()) == [("other", "8")], "the ack may not have reached the server yet"
    assert claims.find(acked)
    assert not claims.find(other)


@pytest.mark.parametrize("has_run", [True, False])
def test_ack_of_a_finished_task_is_sent_with_its_end(claims, has_run):
    tag = claims.hold(claim("job", 7))
    claims.bind(tag, SimpleNamespace())
    if has_run:
        claims.mark_ending(tag)
    assert claims.set_outcome(tag, ACKED) is not has_run, "nothing is reported before the end"
    assert claims.has_news is not has_run
    claims.end(tag)
    acks, ends = claims.pending_reports(10)
    assert (list(acks), [held.outcome_text for held in ends.values()]) == ([], [ACKED])
