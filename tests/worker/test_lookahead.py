"""Jobs that a worker holds beyond its slots start in order, and another worker with nothing to do gets them."""

import json
import signal

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.policy.slot_math import PrefetchLimit
from celery_affinity.schema.keys import Keys

from ..support.fleet import in_time
from ..support.processes import wait_until
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def arrows(redis_client):
    return ScriptedFleet(FakeClockScheduler(redis_client, Keys()))


def start(fleet, name, *queues, ahead=8, **options):
    return fleet.start(name, *queues, CONF=json.dumps({"affinity_lookahead": ahead}), **options)


# -- the arrows


def _holding_ahead(arrows, jobs, most_ahead):
    """Have worker "one" end a job and hold others ahead; return the new claims."""
    arrows.join("one", "pdf")
    for number in range(jobs + 1):
        arrows.publish(f"job{number}", "pdf")
    (first,) = arrows.inbox("one")
    return arrows.end("one", first, most_ahead=most_ahead)


def test_a_release_brings_as_many_more_as_the_worker_takes_the_best_first(arrows):
    arrows.join("one", "pdf")
    for number in range(6):
        arrows.publish(f"job{number}", "pdf", priority=number % 3)
    (first,) = arrows.inbox("one")
    got = arrows.end("one", first, most_ahead=3)
    assert [claim.job_id for claim in got] == ["job2", "job5", "job1", "job4"]
    assert arrows.state("job3") == "pending"


def test_without_looking_ahead_a_release_brings_one_for_each_slot(arrows):
    assert len(_holding_ahead(arrows, jobs=5, most_ahead=0)) == 1


def test_a_worker_that_holds_enough_ahead_gets_no_more(arrows):
    got = _holding_ahead(arrows, jobs=9, most_ahead=3)
    assert len(got) == 4
    assert len(arrows.end("one", got[0], most_ahead=3)) == 1
    assert len(arrows.end("one", *got[1:3], most_ahead=3)) == 2


def _holding_work(arrows, *types, may_hold):
    """Have worker "one" end a job of several of *types*, and hold so much work ahead; return the new claims."""
    arrows.join("one", "pdf", "excel")
    for number, type_ in enumerate(types):
        arrows.publish(f"{number}-{type_}", type_)
    (first,) = arrows.inbox("one")
    return arrows.end("one", first, may_hold=may_hold)


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
def test_so_much_work_of_types_that_are_known_is_taken_ahead(arrows, work_us, costs, ahead):
    got = _holding_work(
        arrows, "pdf", "pdf", "pdf", "excel", "pdf", may_hold=PrefetchLimit(work_us=work_us, costs=costs)
    )
    assert [claim.job_id for claim in got] == ["1-pdf", *ahead]


def test_who_holds_work_gives_way_to_a_job_on_demand(arrows):
    may_hold = PrefetchLimit(work_us=20_000, costs={"pdf": 5_000})
    running, *ahead = _holding_work(arrows, *["pdf"] * 8, may_hold=may_hold)
    assert len(ahead) == 4
    arrows.publish("urgent", "excel", on_demand=True)
    assert arrows.end("one", running, may_hold=may_hold) == [], "one of those ahead has the slot"
    assert arrows.signs("one") == [["back", "3", "excel", "pdf"]]
    arrows.inbox("one")
    assert arrows.end("one", *ahead[1:], outcome="returned", may_hold=may_hold) == []
    got = arrows.end("one", ahead[0], may_hold=may_hold)
    assert [claim.job_id for claim in got] == ["urgent", *(claim.job_id for claim in ahead[1:]), "6-pdf"]


def test_a_job_that_had_no_slot_is_not_to_blame_for_the_death_of_its_worker(arrows):
    got = _holding_ahead(arrows, jobs=4, most_ahead=3)
    arrows.scheduler.recover("one")
    rows = [arrows.scheduler.client.hget(arrows.scheduler.keys.key("job", each.job_id), "deliveries") for each in got]
    assert rows == [b"1", None, None, None]


def test_a_worker_that_joins_asks_for_as_many_as_it_has_free_slots(arrows):
    _holding_ahead(arrows, jobs=4, most_ahead=3)
    arrows.join("two", "pdf", "excel", slots=2)
    assert arrows.signs("one") == [["back", "2", "excel", "pdf"]]


@pytest.mark.parametrize("arrow", ["release", "sync"])
def test_a_worker_with_nothing_to_do_asks(arrows, arrow):
    arrows.join("two", "pdf")
    arrows.publish("own", "pdf")
    (own,) = arrows.inbox("two")
    _holding_ahead(arrows, jobs=2, most_ahead=3)
    assert not arrows.signs("one")
    arrows.end("two", own)
    assert len(arrows.signs("one")) == 1, "a release asks"
    if arrow == "sync":
        arrows.inbox("one")
        arrows.scheduler.client.hset(arrows.scheduler.keys.key("prefetch_turn"), "pdf", "one")
        arrows.sync("two")
        assert len(arrows.signs("one")) == 1, "a sync asks again"


def test_nobody_asks_a_worker_for_what_it_cannot_do(arrows):
    _holding_ahead(arrows, jobs=2, most_ahead=3)
    arrows.join("two", "excel")
    assert not arrows.signs("one")


def test_what_is_given_back_goes_to_who_asked_in_order(arrows):
    got = _holding_ahead(arrows, jobs=4, most_ahead=3)
    arrows.join("two", "pdf", slots=2)
    arrows.end("one", *got[1:], outcome="returned")
    assert arrows.jobs("two") == [got[1].job_id, got[2].job_id]
    assert arrows.state(got[3].job_id) == "pending"


def test_who_gives_some_back_and_holds_more_is_asked_again(arrows):
    got = _holding_ahead(arrows, jobs=3, most_ahead=3)
    arrows.join("two", "pdf")
    arrows.inbox("one")
    arrows.end("one", got[2], outcome="returned")
    (claim,) = arrows.inbox("two")
    arrows.end("two", claim)
    assert arrows.signs("one") == [["back", "1", "pdf"]]


def test_no_worker_that_is_gone_is_asked(arrows, redis_client):
    got = _holding_ahead(arrows, jobs=2, most_ahead=1)
    arrows.end("one", *got)
    arrows.scheduler.leave("one")
    arrows.join("two", "pdf")
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


#: Worker timeout and heartbeat interval, s, so long that no heartbeat helps before the test has ended.
NO_BEATS = {"timeout_s": 300, "heartbeat_s": 60}


def _one_long_and_many_behind_it(fleet, pool, **options):
    """Have a worker with one slot run a long task, with others ahead."""
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
def test_another_worker_gets_what_waits_behind_a_long_task(fleet, pool):
    _one_long_and_many_behind_it(fleet, pool)
    assert _claims(fleet) > 1, "some are held ahead"
    start(fleet, "idle", "pdf", pool="solo")
    wait_until(lambda: _behind(fleet) == 5, 10, "the other runs them")
    assert set(fleet.ledger.starts().values()) == {1}


def test_a_loop_that_a_task_blocks_gives_back_what_is_ahead(fleet):
    _one_long_and_many_behind_it(fleet, "solo", **NO_BEATS)
    start(fleet, "idle", "pdf", pool="solo", **NO_BEATS)
    wait_until(lambda: _behind(fleet) == 5, 20, "the other runs them")
    assert set(fleet.ledger.starts().values()) == {1}


@pytest.mark.parametrize("before", [2, 4], ids=["two are ahead", "none is ahead"])
def test_it_does_so_too_when_it_has_not_read_the_reply_to_what_ended_before(fleet, before):
    for number in range(before):
        fleet.tasks["late"].delay(f"before-{number}", 0)
    fleet.tasks["keep_the_server"].delay("busy", 0.5)  # this end is sent at once, and answered when "long" runs
    fleet.tasks["late"].delay("long", 30)
    for number in range(5):  # some jobs are ahead by then, others come with the reply
        fleet.tasks["late"].delay(f"behind-{number}", 0)
    start(fleet, "holder", "pdf", pool="solo", ahead=4, **NO_BEATS)
    wait_until(lambda: fleet.ledger.starts()["long"], 20, "the long one runs")
    start(fleet, "idle", "pdf", pool="solo", **NO_BEATS)
    wait_until(lambda: _behind(fleet) == 5, 20, "the other runs them")
    assert set(fleet.ledger.starts().values()) == {1}


def test_a_worker_that_stops_returns_what_is_ahead(fleet):
    holder = _one_long_and_many_behind_it(fleet, "prefork")
    holder.signal(signal.SIGTERM)
    wait_until(lambda: _claims(fleet) == 1, 10, "only the running one is held")
    assert not _behind(fleet)


def test_what_a_killed_worker_held_ahead_runs_elsewhere(fleet):
    holder = _one_long_and_many_behind_it(fleet, "prefork")
    holder.kill()
    start(fleet, "other", "pdf", pool="threads", concurrency=2)
    wait_until(lambda: _behind(fleet) == 5, 20, "the other runs them")
    assert fleet.ledger.starts()["long"] == 2
