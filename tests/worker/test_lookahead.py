"""Prefetched jobs beyond a worker's slots start in order, and an idle worker gets them."""

import json
import signal

import pytest

from celery_affinity.policy.slot_math import PrefetchLimit
from celery_affinity.schema.keys import Keys

from ..support.fleet import in_time
from ..support.processes import wait_until


def start(fleet, name, *queues, ahead=8, **options):
    return fleet.start(name, *queues, CONF=json.dumps({"affinity_lookahead": ahead}), **options)


# -- server functions


def _holding_ahead(scripted, jobs, most_ahead):
    """Let worker "one" end a job and prefetch others. Return the new claims."""
    scripted.join("one", "pdf")
    for number in range(jobs + 1):
        scripted.publish(f"job{number}", "pdf")
    (first,) = scripted.inbox("one")
    return scripted.end("one", first, most_ahead=most_ahead)


def test_release_prefetches_the_best_jobs_up_to_the_limit(scripted):
    scripted.join("one", "pdf")
    for number in range(6):
        scripted.publish(f"job{number}", "pdf", priority=number % 3)
    (first,) = scripted.inbox("one")
    got = scripted.end("one", first, most_ahead=3)
    assert [claim.job_id for claim in got] == ["job2", "job5", "job1", "job4"]
    assert scripted.state("job3") == "pending"


def test_release_claims_one_job_per_slot_without_lookahead(scripted):
    assert len(_holding_ahead(scripted, jobs=5, most_ahead=0)) == 1


def test_full_prefetch_limit_stops_further_claims(scripted):
    got = _holding_ahead(scripted, jobs=9, most_ahead=3)
    assert len(got) == 4
    assert len(scripted.end("one", got[0], most_ahead=3)) == 1
    assert len(scripted.end("one", *got[1:3], most_ahead=3)) == 2


def _holding_work(scripted, *types, may_hold):
    """Let worker "one" end a job of *types*, and prefetch the work that *may_hold* allows. Return the new claims."""
    scripted.join("one", "pdf", "excel")
    for number, type_ in enumerate(types):
        scripted.publish(f"{number}-{type_}", type_)
    (first,) = scripted.inbox("one")
    return scripted.end("one", first, may_hold=may_hold)


@pytest.mark.parametrize(
    ("work_us", "costs", "ahead"),
    [
        (20_000, {"pdf": 9_000}, ["2-pdf", "4-pdf"]),
        (20_000, {"pdf": 4_000, "excel": 12_000}, ["2-pdf", "3-excel", "4-pdf"]),
        (17_999, {"pdf": 9_000}, ["2-pdf"]),
        (8_999, {"pdf": 9_000}, []),
        (20_000, {"excel": 20_000}, ["3-excel"]),
    ],
)
def test_prefetch_limit_counts_work_of_types_with_known_cost(scripted, work_us, costs, ahead):
    got = _holding_work(
        scripted, "pdf", "pdf", "pdf", "excel", "pdf", may_hold=PrefetchLimit(work_us=work_us, costs=costs)
    )
    assert [claim.job_id for claim in got] == ["1-pdf", *ahead]


def test_worker_with_prefetched_work_yields_to_on_demand_jobs(scripted):
    may_hold = PrefetchLimit(work_us=20_000, costs={"pdf": 5_000})
    running, *ahead = _holding_work(scripted, *["pdf"] * 8, may_hold=may_hold)
    assert len(ahead) == 4
    scripted.publish("urgent", "excel", on_demand=True)
    assert scripted.end("one", running, may_hold=may_hold) == [], "one of those ahead has the slot"
    assert scripted.signs("one") == [["back", "3", "excel", "pdf"]]
    scripted.inbox("one")
    assert scripted.end("one", *ahead[1:], outcome="returned", may_hold=may_hold) == []
    got = scripted.end("one", ahead[0], may_hold=may_hold)
    assert [claim.job_id for claim in got] == ["urgent", *(claim.job_id for claim in ahead[1:]), "6-pdf"]


def test_worker_death_counts_no_delivery_for_prefetched_jobs(scripted):
    got = _holding_ahead(scripted, jobs=4, most_ahead=3)
    scripted.scheduler.recover("one")
    rows = [
        scripted.scheduler.client.hget(scripted.scheduler.keys.key("job", each.job_id), "deliveries") for each in got
    ]
    assert rows == [b"1", None, None, None]


def test_joining_worker_requests_one_job_per_free_slot(scripted):
    _holding_ahead(scripted, jobs=4, most_ahead=3)
    scripted.join("two", "pdf", "excel", slots=2)
    assert scripted.signs("one") == [["back", "2", "excel", "pdf"]]


@pytest.mark.parametrize("function", ["release", "sync"])
def test_idle_worker_requests_prefetched_jobs(scripted, function):
    scripted.join("two", "pdf")
    scripted.publish("own", "pdf")
    (own,) = scripted.inbox("two")
    _holding_ahead(scripted, jobs=2, most_ahead=3)
    assert not scripted.signs("one")
    scripted.end("two", own)
    assert len(scripted.signs("one")) == 1, "a release asks"
    if function == "sync":
        scripted.inbox("one")
        scripted.scheduler.client.hset(scripted.scheduler.keys.key("prefetch_turn"), "pdf", "one")
        scripted.sync("two")
        assert len(scripted.signs("one")) == 1, "a sync asks again"


def test_worker_does_not_request_jobs_of_other_types(scripted):
    _holding_ahead(scripted, jobs=2, most_ahead=3)
    scripted.join("two", "excel")
    assert not scripted.signs("one")


def test_returned_jobs_go_to_requesting_workers_in_order(scripted):
    got = _holding_ahead(scripted, jobs=4, most_ahead=3)
    scripted.join("two", "pdf", slots=2)
    scripted.end("one", *got[1:], outcome="returned")
    assert scripted.jobs("two") == [got[1].job_id, got[2].job_id]
    assert scripted.state(got[3].job_id) == "pending"


def test_worker_that_still_holds_jobs_gets_another_request(scripted):
    got = _holding_ahead(scripted, jobs=3, most_ahead=3)
    scripted.join("two", "pdf")
    scripted.inbox("one")
    scripted.end("one", got[2], outcome="returned")
    (claim,) = scripted.inbox("two")
    scripted.end("two", claim)
    assert scripted.signs("one") == [["back", "1", "pdf"]]


def test_worker_that_left_gets_no_request(scripted, redis_client):
    got = _holding_ahead(scripted, jobs=2, most_ahead=1)
    scripted.end("one", *got)
    scripted.scheduler.leave("one")
    scripted.join("two", "pdf")
    assert not redis_client.exists(Keys().key("inbox", "one"))


# -- real workers


@pytest.mark.parametrize(("pool", "concurrency"), [("prefork", 2), ("threads", 3), ("solo", 1)])
def test_each_job_runs_once_and_no_slot_is_lost(fleet, pool, concurrency):
    for number in range(120):
        fleet.tasks["late" if number % 2 else "early"].delay(number, 0)
    start(fleet, "ahead", "pdf", pool=pool, concurrency=concurrency)
    wait_until(lambda: len(fleet.ledger.starts()) == 120, 30, "all have run")
    wait_until(fleet.all_slots_are_free, 10, "the slots are free again")
    assert set(fleet.ledger.starts().values()) == {1}


#: Worker timeout and heartbeat interval in seconds, so long that no heartbeat helps before the test has ended.
NO_BEATS = {"timeout_s": 300, "heartbeat_s": 60}


def _one_long_and_many_behind_it(fleet, pool, **options):
    """Start a worker with one slot that runs a long task and has prefetched others."""
    for number in range(12):
        fleet.tasks["late"].delay(f"before-{number}", 0)
    fleet.tasks["late"].delay("long", 30)
    for number in range(5):
        fleet.tasks["late"].delay(f"behind-{number}", 0)
    holder = start(fleet, "holder", "pdf", pool=pool, **options)
    wait_until(lambda: fleet.ledger.starts()["long"], 20, "the long one runs")
    return holder


def _behind(fleet):
    return sum(count for job, count in fleet.ledger.starts().items() if job.startswith("behind"))


def _claims(fleet):
    return sum(fleet.redis.hlen(key) for key in fleet.redis.scan_iter(Keys().key("claims", "*")))


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_another_worker_gets_jobs_prefetched_behind_a_long_task(fleet, pool):
    _one_long_and_many_behind_it(fleet, pool)
    assert _claims(fleet) > 1, "some are held ahead"
    start(fleet, "idle", "pdf", pool="solo")
    wait_until(lambda: _behind(fleet) == 5, 10, "the other runs them")
    assert set(fleet.ledger.starts().values()) == {1}


def test_blocked_loop_returns_prefetched_jobs(fleet):
    _one_long_and_many_behind_it(fleet, "solo", **NO_BEATS)
    start(fleet, "idle", "pdf", pool="solo", **NO_BEATS)
    wait_until(lambda: _behind(fleet) == 5, 20, "the other runs them")
    assert set(fleet.ledger.starts().values()) == {1}


@pytest.mark.parametrize("before", [2, 4], ids=["two are ahead", "none is ahead"])
def test_blocked_loop_returns_prefetched_jobs_before_an_earlier_reply(fleet, before):
    for number in range(before):
        fleet.tasks["late"].delay(f"before-{number}", 0)
    fleet.tasks["keep_the_server"].delay("busy", 0.5)  # its end is sent immediately; the reply comes during "long"
    fleet.tasks["late"].delay("long", 30)
    for number in range(5):  # some jobs are already prefetched, the others arrive with the reply
        fleet.tasks["late"].delay(f"behind-{number}", 0)
    start(fleet, "holder", "pdf", pool="solo", ahead=4, **NO_BEATS)
    wait_until(lambda: fleet.ledger.starts()["long"], 20, "the long one runs")
    start(fleet, "idle", "pdf", pool="solo", **NO_BEATS)
    wait_until(lambda: _behind(fleet) == 5, 20, "the other runs them")
    assert set(fleet.ledger.starts().values()) == {1}


def test_stopping_worker_returns_prefetched_jobs(fleet):
    holder = _one_long_and_many_behind_it(fleet, "prefork")
    holder.signal(signal.SIGTERM)
    wait_until(lambda: _claims(fleet) == 1, 10, "only the running one is held")
    assert not _behind(fleet)


def test_jobs_prefetched_by_a_killed_worker_run_elsewhere(fleet):
    holder = _one_long_and_many_behind_it(fleet, "prefork")
    holder.kill()
    start(fleet, "other", "pdf", pool="threads", concurrency=2)
    wait_until(lambda: _behind(fleet) == 5, 20, "the other runs them")
    assert fleet.ledger.starts()["long"] == 2
