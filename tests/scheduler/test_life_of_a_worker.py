"""The life of a worker on a real server, from its join to its death."""

import pytest

from celery_affinity.clock import SECOND_US
from celery_affinity.scheduler.messages import Claim, JoinArguments
from celery_affinity.schema.constants import MAX_MOVES, TICKED_LATELY_US, TICKERS
from celery_affinity.schema.keys import Keys


def _silence(fleet, seconds):
    """Let time pass with ticks, because a silence counts only while ticks occur."""
    for _ in range(round(seconds)):
        fleet.scheduler.advance(1)
        ticked = fleet.scheduler.tick()
    return ticked


def run(fleet, worker="worker", **fields):
    """Publish a job and join a worker for it. Return the claim."""
    fleet.publish("job", "pdf", **fields)
    return fleet.join_and_claim(worker, "pdf")


def test_silent_workers_jobs_keep_their_enqueue_time(fleet):
    claim = run(fleet, "silent")
    _silence(fleet, 29)
    assert fleet.claims("silent")
    _silence(fleet, 2)
    assert fleet.state("job") == "pending"
    again = fleet.join_and_claim("healthy", "pdf")
    assert (again.job_id, again.deliveries, again.enqueued_us) == ("job", 1, claim.enqueued_us)


@pytest.mark.parametrize("expires_s", [None, 5])
def test_acked_job_of_a_dead_worker_is_lost(fleet, expires_s):
    fleet.ack("silent", run(fleet, "silent", expires_s=expires_s))
    _silence(fleet, 31)
    fleet.join("healthy", "pdf")
    assert fleet.jobs("healthy") == []
    assert fleet.state("job") == "dead"


@pytest.mark.parametrize("dies", ["silent", "reported"])
def test_dead_workers_revoked_acked_job_ends_as_revoked(fleet, dies):
    claim = run(fleet)
    fleet.scheduler.revoke(["task-job"], [], keep_s=60)
    fleet.ack("worker", claim)
    if dies == "silent":
        _silence(fleet, 31)
    else:
        fleet.scheduler.recover("worker")
    assert fleet.state("job") == "revoked"
    assert fleet.scheduler.next_report("app", again_s=10.0).how == "revoked"


def test_late_release_of_a_dead_worker_changes_nothing(fleet):
    claim = run(fleet, "silent")
    _silence(fleet, 31)
    assert fleet.end("silent", claim) == []
    assert fleet.state("job") == "pending"
    assert not fleet.sync("silent", {claim.job_id: claim.fence}).is_registered


@pytest.mark.parametrize("seconds", [1000, 60, -60])
def test_outage_or_clock_change_kills_no_worker(fleet, seconds):
    run(fleet)
    fleet.scheduler.tick()
    fleet.scheduler.advance(seconds)  # no tick occurred in between, or another server has another clock
    fleet.scheduler.tick()
    assert fleet.claims("worker")
    _silence(fleet, 29)
    assert fleet.claims("worker")


@pytest.mark.parametrize("of_guard", [False, True])
def test_worker_with_heartbeats_never_dies(fleet, of_guard):
    run(fleet)
    for _ in range(20):
        _silence(fleet, 5)
        if of_guard:
            assert fleet.scheduler.heartbeat("worker", loop_runs=True)
        else:
            assert fleet.sync("worker").is_registered
    assert fleet.claims("worker")
    if of_guard:
        assert not fleet.scheduler.heartbeat("stranger", loop_runs=True)
        _silence(fleet, 31)
        assert not fleet.scheduler.heartbeat("worker", loop_runs=True), "it is dead"


def test_departed_fleet_leaves_only_settings(fleet, redis_client):
    before = set(redis_client.keys())
    fleet.join("one", "pdf", "excel", slots=4)
    fleet.join("two", "pdf")
    fleet.join("two", "pdf", "index")
    fleet.scheduler.leave("one")
    _silence(fleet, 31)
    left = set(redis_client.keys()) - before
    known = [Keys().key(name).encode() for name in ("settings", "conf_last", "clock", "schema")]
    assert left == {*known, Keys().key("conf_by_app", "").encode()}


def test_leaving_worker_returns_its_claims(fleet, redis_client):
    fleet.publish("job", "pdf")
    fleet.join("one", "pdf")
    fleet.join("two", "pdf")
    fleet.scheduler.leave("one")
    assert redis_client.zrange(Keys().key("heartbeats"), 0, -1) == [b"two"]
    (claim,) = fleet.inbox("two")
    assert (claim.job_id, claim.deliveries) == ("job", 0)


def test_late_heartbeat_does_not_stop_a_running_recovery(fleet):
    for number in range(60):
        fleet.publish(f"job{number:02}", "pdf")
    fleet.join("dead", "pdf", slots=60)
    again, recovered = fleet.scheduler._run("recover", worker="dead")
    assert (again, recovered) == (1, MAX_MOVES)
    assert not fleet.scheduler.heartbeat("dead", loop_runs=True)
    assert len(fleet.claims("dead")) == 60 - MAX_MOVES
    fleet.scheduler.advance(1)
    _silence(fleet, 31)
    assert not fleet.claims("dead"), "a tick goes on where the guard ended"


def test_blocked_worker_gets_no_job_and_loses_unread_ones(fleet):
    for job in ("read", "unread"):
        fleet.publish(job, "pdf")
    fleet.join("stuck", "pdf", slots=3)
    read = Claim.parse(fleet.scheduler.client.rpop(Keys().key("inbox", "stuck")))
    fleet.join("other", "pdf", "excel")
    fleet.scheduler.heartbeat("stuck", loop_runs=False)
    assert fleet.claims("stuck") == {"read": read.fence}
    (elsewhere,) = fleet.inbox("other")
    assert (elsewhere.job_id, elsewhere.deliveries) == ("unread", 0)
    fleet.publish("new", "pdf")
    assert fleet.state("new") == "pending"
    fleet.scheduler.heartbeat("stuck", loop_runs=True)
    assert fleet.jobs("stuck") == ["new"]


def test_inline_claim_marks_the_loop_as_running(fleet):
    for job in ("long", "next", "third"):
        fleet.publish(job, "pdf")
    claim = fleet.join_and_claim("solo", "pdf")
    fleet.scheduler.heartbeat("solo", loop_runs=False)
    assert fleet.end("solo", claim, inline=False) == []
    assert fleet.claims("solo") == {}, "another thread's word proves nothing"
    fleet.scheduler.heartbeat("solo", loop_runs=True)
    (claim,) = fleet.inbox("solo")
    fleet.scheduler.heartbeat("solo", loop_runs=False)
    (following,) = fleet.end("solo", claim, inline=True)
    assert following.job_id == "third"


def test_rejoined_worker_is_no_longer_blocked(fleet):
    fleet.join("worker", "pdf")
    fleet.scheduler.heartbeat("worker", loop_runs=False)
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    assert fleet.jobs("worker") == ["job"]


def test_reported_death_requeues_all_jobs_except_acked_ones(fleet, redis_client):
    for number in range(120):
        fleet.publish(f"job{number:03}", "pdf")
    fleet.join("dead", "pdf", slots=120)
    first = fleet.inbox("dead")[0]
    fleet.scheduler.release_and_claim("dead", acks=[(first.job_id, first.fence)], ends=[], sequence=1, inline=False)
    assert fleet.scheduler.recover("dead") == 120
    assert fleet.state(first.job_id) == "dead"
    assert redis_client.zcard(Keys().key("heartbeats")) == 0
    fleet.join("healthy", "pdf", slots=200)
    again = fleet.inbox("healthy")
    assert len(again) == 119
    assert {claim.deliveries for claim in again} == {1}
    assert fleet.scheduler.recover("dead") == 0, "said twice"


def test_draining_worker_returns_unnamed_claims_and_gets_none(fleet):
    for job in ("running", "unread"):
        fleet.publish(job, "pdf")
    fleet.join("worker", "pdf", slots=2)
    running = fleet.inbox("worker")[0]
    fleet.sync("worker", {running.job_id: running.fence}, slots=2, draining=True)
    assert fleet.state("unread") == "pending"
    fleet.publish("new", "pdf")
    assert fleet.claims("worker") == {"running": running.fence}


def test_worker_whose_pool_shrank_to_nothing_can_leave(fleet, redis_client):
    fleet.join("worker", "pdf", slots=1)
    fleet.sync("worker", slots=0)
    fleet.scheduler.leave("worker")
    assert redis_client.zcard(Keys().key("heartbeats")) == 0


def test_worker_without_slots_gets_no_job_in_a_slot_that_a_claim_lends(fleet):
    claim = run(fleet)
    fleet.publish("next", "pdf")
    fleet.sync("worker", {"job": claim.fence}, slots=0, other=-1)
    assert fleet.end("worker", claim) == []
    assert fleet.state("next") == "pending"


def test_worker_with_the_same_name_is_reported(fleet):
    assert fleet.join("one", "pdf").namesake is None
    assert fleet.scheduler.join(JoinArguments("other", "one@host", ["pdf"], 1), {}).namesake == "one"


def test_further_worker_ticks_once_the_last_tick_is_old(fleet):
    for number in range(TICKERS + 1):
        fleet.join(f"worker{number}", "pdf")
    fleet.scheduler.tick()
    fleet.scheduler.advance(TICKED_LATELY_US / SECOND_US)
    assert [fleet.sync(f"worker{number}").ticker for number in range(TICKERS + 1)] == [True] * TICKERS + [False]
    fleet.scheduler.advance(1 / SECOND_US)
    assert fleet.sync(f"worker{TICKERS}").ticker
