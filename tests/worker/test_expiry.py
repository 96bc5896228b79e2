"""`expires` uses the server's clock from publish to start, wherever a job waits; no host's clock matters."""

import json
import time

import pytest
from celery.exceptions import TaskRevokedError

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.processes import wait_until, wait_until_it_listens

HOUR_S = 3600


# -- server functions


def _some_expire(scripted, number=3):
    """Let *number* jobs expire unseen by a tick, in front of a job that stays."""
    for each in range(number):
        scripted.publish(f"expires{each}", "pdf", expires_s=60)
    scripted.publish("stays", "pdf")
    scripted.scheduler.advance(61)


def _have_ended(scripted, number=3):
    return {scripted.state(f"expires{each}") for each in range(number)} == {"expired"}


def test_claim_skips_expired_jobs_before_a_tick_sees_them(scripted):
    _some_expire(scripted)
    scripted.join("one", "pdf")
    assert scripted.jobs("one") == ["stays"]
    assert _have_ended(scripted)
    told = [scripted.scheduler.next_report("app", again_s=1) for _ in range(3)]
    assert {(each.job_id, each.how) for each in told} == {(f"expires{each}", "expired") for each in range(3)}


def test_release_claims_and_prefetches_only_unexpired_jobs(scripted):
    scripted.join("one", "pdf")
    scripted.publish("first", "pdf")
    (first,) = scripted.inbox("one")
    _some_expire(scripted)
    scripted.publish("ahead", "pdf", expires_s=60)
    assert [claim.job_id for claim in scripted.end("one", first, most_ahead=2)] == ["stays", "ahead"]
    assert _have_ended(scripted)


def test_claim_skips_more_expired_jobs_than_one_invocation_reads(scripted):
    _some_expire(scripted, number=25)
    scripted.join("one", "pdf")
    assert scripted.jobs("one") == ["stays"]
    assert _have_ended(scripted, number=25)


def test_every_claim_of_a_job_carries_its_expiry(scripted):
    scripted.publish("job", "pdf", expires_s=60)
    expires_us = scripted.scheduler.now_us + 60_000_000
    scripted.join("one", "pdf")
    scripted.scheduler.advance(5.5)
    scripted.sync("one", {})  # the unread claim is requeued, found by its bytes
    (claim,) = scripted.inbox("one")
    assert (claim.expires_us, claim.message) == (expires_us, b"message of job")
    scripted.end("one", claim, outcome="returned", inline=False)
    (again,) = scripted.inbox("one")
    assert int(claim.fence) < int(again.fence)
    assert again.expires_us == expires_us
    scripted.publish("other", "pdf")
    (other,) = scripted.end("one", again)
    assert other.expires_us is None


def _commands_of_a_release(scripted, redis_client, nth, expires_s):
    """Return the commands of a release that claims the next job."""
    for each in range(2):
        scripted.publish(f"job{nth}{each}", "pdf", expires_s=expires_s)
    (first,) = scripted.inbox("one")
    redis_client.config_resetstat()
    (second,) = scripted.end("one", first)
    found = {name.removeprefix("cmdstat_"): value["calls"] for name, value in redis_client.info("commandstats").items()}
    scripted.end("one", second)
    return found


def test_expiry_costs_three_reads_per_job(scripted, redis_client):
    scripted.join("one", "pdf")
    _, plain, expiring = (
        _commands_of_a_release(scripted, redis_client, nth, expires_s) for nth, expires_s in enumerate((None, None, 60))
    )
    assert expiring.pop("zrem") == plain.pop("zrem") + 1, "what ended is taken out of those that expire"
    more = {name: calls - plain.get(name, 0) for name, calls in expiring.items() if calls != plain.get(name)}
    assert more == {"hmget": 2, "mget": 1}


# -- real workers


@pytest.mark.parametrize(
    ("pool", "offset_s"), [("prefork", HOUR_S), ("threads", HOUR_S), ("solo", -HOUR_S), ("gevent", HOUR_S)]
)
def test_unexpired_job_and_retry_run_despite_wrong_clock(fleet, pool, offset_s):
    fleet.start("worker", "pdf", pool=pool, CLOCK_OFFSET_S=str(offset_s))
    result = fleet.tasks["retry"].apply_async(("job",), expires=60)
    assert result.get(timeout=10) == "pdf"
    assert fleet.ledger.starts()["job"] == 2


def _is_revoked(result):
    with pytest.raises(TaskRevokedError, match="expired"):
        result.get(timeout=15)


def test_retry_expires_with_first_attempt_despite_slow_clock(fleet):
    fleet.start("worker", "pdf", CLOCK_OFFSET_S=str(-HOUR_S))
    _is_revoked(fleet.tasks["retry"].apply_async(("job",), {"countdown": 3}, expires=1.5))
    assert fleet.ledger.starts()["job"] == 1


def test_job_expiring_in_a_rate_limit_takes_no_token(fleet):
    fleet.start("worker", "mail", "pdf", pool="threads", concurrency=8, RATE_LIMIT="30/m", CLOCK_OFFSET_S=str(-HOUR_S))
    fleet.tasks["mail"].delay("first").get(timeout=10)
    expiring = [fleet.tasks["mail"].apply_async((f"expires-{number}",), expires=1) for number in range(3)]
    fleet.tasks["mail"].delay("next").get(timeout=6)
    for result in expiring:
        _is_revoked(result)
    assert set(fleet.ledger.starts()) == {"first", "next"}
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")


def test_prefetched_job_that_expires_is_revoked(fleet):
    fleet.start("worker", "pdf", CONF=json.dumps({"affinity_lookahead": 8}), CLOCK_OFFSET_S=str(-HOUR_S))
    for number in range(12):
        fleet.tasks["early"].delay(f"before-{number}", 0)
    fleet.tasks["early"].delay("long", 2)
    expiring = [fleet.tasks["early"].apply_async((f"expires-{number}",), expires=1.5) for number in range(3)]
    wait_until(lambda: fleet.ledger.starts()["long"], 20, "the long one runs")
    for result in expiring:
        _is_revoked(result)
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")
    assert not any(job.startswith("expires") for job in fleet.ledger.starts())


def test_job_that_expires_unread_in_the_inbox_is_revoked(fleet):
    fleet.start("worker", "pdf", pool="threads", CLOCK_OFFSET_S=str(-HOUR_S))
    wait_until_it_listens(fleet.app, "worker")
    fleet.app.control.broadcast("block", arguments={"seconds": 2.5})
    wait_until(lambda: fleet.ledger.starts()["block"], 10, "its loop stands still")
    result = fleet.tasks["pdf"].apply_async(("expires",), expires=1)
    _is_revoked(result)
    assert not fleet.ledger.starts()["expires"]


def test_replayed_dead_letter_runs_after_its_expiry(fleet):
    fleet.start("worker", "pdf", pool="threads")
    expires_s = time.time() + 1
    fleet.tasks["reject"].apply_async(("job",), expires=1)
    (letter,) = wait_until(fleet.dead, 10, "it is refused")
    wait_until(lambda: time.time() > expires_s, 5, "its time is over")
    Scheduler(fleet.redis, Keys()).replay([letter.job_id])
    wait_until(lambda: fleet.ledger.starts()["job"] == 2, 10, "it runs")
