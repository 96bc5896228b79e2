"""`expires`: by the server's clock from the publish to the start, wherever a job waits; no host's clock matters."""

import json
import time

import pytest
from celery.exceptions import TaskRevokedError

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.processes import wait_until, wait_until_it_listens
from ..support.scripted_fleet import ScriptedFleet

HOUR_S = 3600


@pytest.fixture
def arrows(redis_client):
    return ScriptedFleet(FakeClockScheduler(redis_client, Keys()))


# -- the arrows


def _some_expire(arrows, number=3):
    """Let *number* jobs expire, seen by no tick, in front of a job that stays."""
    for each in range(number):
        arrows.publish(f"expires{each}", "pdf", expires_s=60)
    arrows.publish("stays", "pdf")
    arrows.scheduler.advance(61)


def _have_ended(arrows, number=3):
    return {arrows.state(f"expires{each}") for each in range(number)} == {"expired"}


def test_a_claim_skips_what_has_expired_before_a_tick_has_seen_it(arrows):
    _some_expire(arrows)
    arrows.join("one", "pdf")
    assert arrows.jobs("one") == ["stays"]
    assert _have_ended(arrows)
    told = [arrows.scheduler.next_report("app", again_s=1) for _ in range(3)]
    assert {(each.job_id, each.how) for each in told} == {(f"expires{each}", "expired") for each in range(3)}


def test_a_release_goes_on_to_the_next_job_that_has_not_expired_and_so_does_what_is_ahead(arrows):
    arrows.join("one", "pdf")
    arrows.publish("first", "pdf")
    (first,) = arrows.inbox("one")
    _some_expire(arrows)
    arrows.publish("ahead", "pdf", expires_s=60)
    assert [claim.job_id for claim in arrows.end("one", first, most_ahead=2)] == ["stays", "ahead"]
    assert _have_ended(arrows)


def test_more_than_one_call_looks_at_are_skipped_all_the_same(arrows):
    _some_expire(arrows, number=25)
    arrows.join("one", "pdf")
    assert arrows.jobs("one") == ["stays"]
    assert _have_ended(arrows, number=25)


def test_a_worker_reads_when_its_job_expires_each_time_it_gets_it(arrows):
    arrows.publish("job", "pdf", expires_s=60)
    expires_us = arrows.scheduler.now_us + 60_000_000
    arrows.join("one", "pdf")
    arrows.scheduler.advance(5.5)
    arrows.sync("one", {})  # the unread claim goes back, found by its bytes
    (claim,) = arrows.inbox("one")
    assert (claim.expires_us, claim.message) == (expires_us, b"message of job")
    arrows.end("one", claim, outcome="returned", inline=False)
    (again,) = arrows.inbox("one")
    assert int(claim.fence) < int(again.fence)
    assert again.expires_us == expires_us
    arrows.publish("other", "pdf")
    (other,) = arrows.end("one", again)
    assert other.expires_us is None


def _commands_of_a_release(arrows, redis_client, nth, expires_s):
    """Return the commands of a release that brings the next job."""
    for each in range(2):
        arrows.publish(f"job{nth}{each}", "pdf", expires_s=expires_s)
    (first,) = arrows.inbox("one")
    redis_client.config_resetstat()
    (second,) = arrows.end("one", first)
    found = {name.removeprefix("cmdstat_"): value["calls"] for name, value in redis_client.info("commandstats").items()}
    arrows.end("one", second)
    return found


def test_a_job_that_expires_costs_a_look_at_its_claim_and_two_at_its_end_and_no_other_does(arrows, redis_client):
    arrows.join("one", "pdf")
    _, plain, expiring = (
        _commands_of_a_release(arrows, redis_client, nth, expires_s) for nth, expires_s in enumerate((None, None, 60))
    )
    assert expiring.pop("zrem") == plain.pop("zrem") + 1, "what ended is taken out of those that expire"
    more = {name: calls - plain.get(name, 0) for name, calls in expiring.items() if calls != plain.get(name)}
    assert more == {"hmget": 2, "mget": 1}


# -- real workers


@pytest.mark.parametrize(
    ("pool", "offset_s"), [("prefork", HOUR_S), ("threads", HOUR_S), ("solo", -HOUR_S), ("gevent", HOUR_S)]
)
def test_a_job_that_has_time_left_runs_whatever_the_workers_clock_says_and_so_does_its_retry(fleet, pool, offset_s):
    fleet.start("worker", "pdf", pool=pool, CLOCK_OFFSET_S=str(offset_s))
    result = fleet.tasks["retry"].apply_async(("job",), expires=60)
    assert result.get(timeout=10) == "pdf"
    assert fleet.ledger.starts()["job"] == 2


def _is_revoked(result):
    with pytest.raises(TaskRevokedError, match="expired"):
        result.get(timeout=15)


def test_a_retry_expires_when_its_first_attempt_would_have_though_the_workers_clock_is_behind(fleet):
    fleet.start("worker", "pdf", CLOCK_OFFSET_S=str(-HOUR_S))
    _is_revoked(fleet.tasks["retry"].apply_async(("job",), {"countdown": 3}, expires=1.5))
    assert fleet.ledger.starts()["job"] == 1


def test_what_expires_while_it_waits_for_a_rate_limit_is_revoked_and_takes_no_token(fleet):
    fleet.start("worker", "mail", "pdf", pool="threads", concurrency=8, RATE_LIMIT="30/m", CLOCK_OFFSET_S=str(-HOUR_S))
    fleet.tasks["mail"].delay("first").get(timeout=10)
    expiring = [fleet.tasks["mail"].apply_async((f"expires-{number}",), expires=1) for number in range(3)]
    fleet.tasks["mail"].delay("next").get(timeout=6)
    for result in expiring:
        _is_revoked(result)
    assert set(fleet.ledger.starts()) == {"first", "next"}
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")


def test_what_expires_while_it_is_ahead_of_its_slot_is_revoked(fleet):
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


def test_what_expires_unread_in_the_inbox_is_revoked(fleet):
    fleet.start("worker", "pdf", pool="threads", CLOCK_OFFSET_S=str(-HOUR_S))
    wait_until_it_listens(fleet.app, "worker")
    fleet.app.control.broadcast("block", arguments={"seconds": 2.5})
    wait_until(lambda: fleet.ledger.starts()["block"], 10, "its loop stands still")
    result = fleet.tasks["pdf"].apply_async(("expires",), expires=1)
    _is_revoked(result)
    assert not fleet.ledger.starts()["expires"]


def test_a_dead_letter_that_is_replayed_runs_though_its_message_says_that_it_has_expired(fleet):
    fleet.start("worker", "pdf", pool="threads")
    expires_s = time.time() + 1
    fleet.tasks["reject"].apply_async(("job",), expires=1)
    (letter,) = wait_until(fleet.dead, 10, "it is refused")
    wait_until(lambda: time.time() > expires_s, 5, "its time is over")
    Scheduler(fleet.redis, Keys()).replay([letter.job_id])
    wait_until(lambda: fleet.ledger.starts()["job"] == 2, 10, "it runs")
