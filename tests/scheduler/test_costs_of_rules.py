"""The work of one call is bounded with any number of limits and sub-lanes; what a call leaves is taken up by others."""

import pytest

from celery_affinity.scheduler.messages import EndArguments
from celery_affinity.schema.constants import MOST_CLAIMS, MOST_FILLED
from celery_affinity.schema.keys import Keys

from ..support.counting import Counting
from ..support.scripted_fleet import ScriptedFleet

TYPES = [f"type{number:03}" for number in range(1_000)]

#: Commands of a call that takes well under 5 ms: a command takes 2 to 4 µs.
MOST_COMMANDS = 1_000


@pytest.fixture
def fleet(redis_client):
    fleet = ScriptedFleet(Counting(redis_client, Keys()))
    fleet.scheduler.configure({"worker_timeout_us": "3600000000"})  # no worker here reports, however long a test takes
    return fleet


def limits(number, types=TYPES):
    return {"limits": " ".join(f"type%3A{type_}={number}" for type_ in types)}


def rule(fleet, type_):
    return (fleet.scheduler.client.hget(Keys().key("type_rules"), type_) or b"").decode()


def tick_once(fleet):
    """Tick as a dispatcher that is killed after one call. Return whether there was more to do."""
    again, *_ = fleet.scheduler._run("tick")
    return bool(again)


# -- limits of very many types


def test_limits_of_very_many_types_are_set_at_once_and_opened_some_at_a_time(fleet):
    fleet.scheduler.configure(limits(3))
    assert fleet.scheduler.most() < 40
    assert {rule(fleet, type_) for type_ in TYPES} == {"limit=3 counting"}
    fleet.scheduler.tick()
    assert fleet.scheduler.most() < MOST_COMMANDS
    assert {rule(fleet, type_) for type_ in TYPES} == {"limit=3"}
    ticks = [name for name, *_ in fleet.scheduler.calls].count("tick")
    assert ticks == len(TYPES) / MOST_FILLED + 1
    assert not fleet.scheduler.client.exists(Keys().key("recount"))


def test_what_a_killed_dispatcher_leaves_closed_another_one_opens(fleet):
    fleet.join("worker", TYPES[-1])
    fleet.scheduler.configure(limits(1))
    fleet.publish("job", TYPES[-1])
    assert tick_once(fleet)
    assert fleet.jobs("worker") == []
    assert rule(fleet, TYPES[0]) == "limit=1"
    assert rule(fleet, TYPES[-1]) == "limit=1 counting"
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == ["job"]


def test_limits_that_change_while_types_are_being_opened_leave_none_closed(fleet):
    fleet.scheduler.configure(limits(1))
    assert tick_once(fleet)
    fleet.scheduler.configure(limits(1, TYPES[:10] + TYPES[500:]))  # the places in the setting are others
    fleet.scheduler.tick()
    assert {rule(fleet, type_) for type_ in TYPES[:10] + TYPES[500:]} == {"limit=1"}
    assert {rule(fleet, type_) for type_ in TYPES[10:500]} == {""}


def test_very_many_limits_that_change_are_in_force_at_once_for_some_types_and_closed_for_others(fleet):
    fleet.scheduler.configure(limits(1))
    fleet.scheduler.tick()
    fleet.scheduler.configure(limits(2))
    assert fleet.scheduler.most() < 200
    rules = [rule(fleet, type_) for type_ in TYPES]
    assert rules.count("limit=2") == MOST_FILLED
    assert rules.count("limit=2 counting") == len(TYPES) - MOST_FILLED
    fleet.scheduler.tick()
    assert {rule(fleet, type_) for type_ in TYPES} == {"limit=2"}


def test_repair_has_claims_counted_for_types_that_would_stay_closed(fleet):
    fleet.scheduler.configure(limits(1))
    fleet.scheduler.client.delete(Keys().key("recount"))
    assert fleet.scheduler.repair() == [f"{Keys().key('recount')}: nothing instead of 0"]
    fleet.scheduler.tick()
    assert {rule(fleet, type_) for type_ in TYPES} == {"limit=1"}


def test_very_many_limits_that_go_cost_little_and_their_types_go_on(fleet):
    fleet.join("worker", *TYPES[:30], slots=30)
    fleet.scheduler.configure(limits(0))
    fleet.scheduler.tick()
    for type_ in TYPES[:30]:
        fleet.publish(f"job-of-{type_}", type_)
    assert fleet.jobs("worker") == []
    fleet.scheduler.configure({"limits": ""})
    assert len(fleet.jobs("worker")) == 30
    assert fleet.scheduler.most() < MOST_COMMANDS
    assert not fleet.scheduler.client.exists(Keys().key("type_rules"))


@pytest.mark.parametrize("workers", [1, 3, 40], ids=["of one worker", "of some", "of many"])
def test_very_many_claims_are_counted_some_at_a_time(fleet, workers):
    claims = 1_200
    for number in range(workers):
        fleet.join(f"worker{number}", "pdf", slots=claims // workers)
    fleet.scheduler.publish(*fleet.made([f"job{number}" for number in range(claims)], "pdf"))
    fleet.scheduler.configure(limits(claims, ["pdf"]))
    fleet.scheduler.calls.clear()
    calls = 1
    while tick_once(fleet):
        calls += 1
    assert fleet.scheduler.most() < MOST_COMMANDS
    assert calls >= claims / (2 * MOST_CLAIMS)
    assert fleet.scheduler.client.zcard(Keys().key("type_running", "pdf")) == claims
    assert rule(fleet, "pdf") == f"limit={claims} full"


def test_very_many_claims_that_no_limit_counts_are_looked_at_some_at_a_time(fleet):
    claims = 1_200
    for number in range(3):
        fleet.join(f"worker{number}", "excel", slots=claims // 3)
    fleet.scheduler.publish(*fleet.made([f"job{number}" for number in range(claims)], "excel"))
    fleet.scheduler.configure(limits(1, ["pdf"]))
    fleet.scheduler.calls.clear()
    while tick_once(fleet):
        pass
    assert fleet.scheduler.most() < MOST_COMMANDS
    assert rule(fleet, "pdf") == "limit=1"


def test_claims_of_a_worker_that_leaves_while_they_are_counted_are_not_counted(fleet):
    for worker in ("first", "second"):
        fleet.join(worker, "pdf", slots=300)
    fleet.scheduler.publish(*fleet.made([f"job{number}" for number in range(600)], "pdf"))
    fleet.scheduler.configure(limits(600, ["pdf"]))
    assert tick_once(fleet)
    fleet.scheduler.client.delete(Keys().key("heads"))
    fleet.scheduler.leave("first")
    fleet.scheduler.tick()
    assert fleet.scheduler.client.zcard(Keys().key("type_running", "pdf")) == len(fleet.claims("second"))


# -- a key whose jobs wait in very many lanes

TYPES_OF_KEY = TYPES[:20]
LANES = [
    (type_, priority, on_demand) for type_ in TYPES_OF_KEY for priority in range(11) for on_demand in (False, True)
]


def publish_to_many_lanes(fleet, lanes=LANES, rules="key=k limit=1"):
    """Publish jobs of one key, one in each of *lanes*. Return their ids."""
    jobs = [f"{type_}-{priority}-{int(on_demand)}!" for type_, priority, on_demand in lanes]
    for job, (type_, priority, on_demand) in zip(jobs, lanes, strict=True):
        fleet.publish(job, type_, priority=priority, on_demand=on_demand, rules=rules)
    return jobs


def standing(fleet, type_):
    """Return how many jobs of a type stand in lanes."""
    lanes = fleet.scheduler.client.scan_iter(Keys().key("lane", type_, "*"))
    return sum(fleet.scheduler.client.zcard(lane) for lane in lanes)


@pytest.fixture
def busy(fleet):
    """Have a worker hold key "k", for which jobs wait in very many lanes of types that the worker does not serve."""
    fleet.join("worker", "pdf")
    fleet.publish("holder!", "pdf", rules="key=k limit=1")
    (claim,) = fleet.inbox("worker")
    publish_to_many_lanes(fleet)
    fleet.scheduler.calls.clear()
    return claim


@pytest.mark.slow_on_redis
def test_a_key_over_very_many_lanes_changes_some_of_them_in_a_call(fleet):
    fleet.join("worker", *TYPES_OF_KEY)
    jobs = publish_to_many_lanes(fleet)
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.calls.clear()
    started = [claim.job_id]
    while following := fleet.end("worker", claim):
        (claim,) = following
        started.append(claim.job_id)
        fleet.scheduler.tick()
    assert fleet.scheduler.most() < MOST_COMMANDS
    assert sorted(started) == sorted(jobs)


def test_what_is_urgent_goes_first(fleet, busy):
    fleet.publish("urgent!", "pdf", priority=10, on_demand=True, rules="key=k limit=1")
    (claim,) = fleet.end("worker", busy)
    assert claim.job_id == "urgent!"


def test_what_is_old_goes_first(fleet):
    fleet.join("worker", "pdf")
    for job in ("holder!", "old!"):
        fleet.publish(job, "pdf", rules="key=k limit=1")
    (claim,) = fleet.inbox("worker")
    publish_to_many_lanes(fleet)
    (claim,) = fleet.end("worker", claim)
    assert claim.job_id == "old!"


def test_a_tick_goes_on_with_lanes_that_a_call_did_not_get_to(fleet, busy):
    publish_to_many_lanes(fleet, [("pdf", 0, False)])
    assert fleet.end("worker", busy) == [], "neither old nor urgent"
    assert ["tick"] in fleet.signs("worker")
    assert not fleet.scheduler.client.exists(Keys().key("held", "k"))
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == ["pdf-0-0!"]
    assert fleet.scheduler.most() < MOST_COMMANDS


def opened(fleet, busy):
    """Have all those jobs stand in their lanes. Then the key is taken again: most go on standing there, in vain."""
    fleet.end("worker", busy)
    fleet.scheduler.tick()
    assert sum(standing(fleet, type_) for type_ in TYPES_OF_KEY) == len(LANES)
    fleet.publish("holder-2!", "pdf", priority=10, on_demand=True, rules="key=k limit=1")
    assert fleet.jobs("worker") == ["holder-2!"]
    in_vain = {type_: standing(fleet, type_) for type_ in TYPES_OF_KEY}
    assert 0 < sum(in_vain.values()) < len(LANES)
    return in_vain


def test_no_job_starts_that_stands_in_its_lane_in_vain(fleet, busy):
    in_vain = opened(fleet, busy)
    for type_ in in_vain:
        fleet.join(f"worker-of-{type_}", type_)
    assert [fleet.jobs(f"worker-of-{type_}") for type_ in in_vain] == [[]] * len(TYPES_OF_KEY)
    fleet.scheduler.tick()
    assert sum(standing(fleet, type_) for type_ in in_vain) == 0


def test_each_job_that_stood_in_vain_starts_in_the_end(fleet, busy):
    workers = {f"worker-of-{type_}": type_ for type_ in TYPES_OF_KEY}
    for worker, type_ in workers.items():
        fleet.join(worker, type_, slots=0)
    opened(fleet, busy)
    for worker in workers:
        fleet.sync(worker, slots=1)  # finds that the job must not start
    (claim,) = fleet.claims("worker").items()
    fleet.scheduler.release_and_claim(
        "worker", acks=[], ends=[EndArguments(*claim, "acked")], sequence=100, inline=True
    )
    started = set()
    while len(started) < len(LANES):
        fleet.scheduler.tick()
        ((worker, claim),) = [(each, claim) for each in workers for claim in fleet.inbox(each)]
        started.add(claim.job_id)
        fleet.end(worker, claim, inline=False)


@pytest.mark.parametrize("type_", ["pdf", "excel", "index", "mail"])
def test_a_job_that_comes_back_while_its_lanes_are_still_being_closed_waits_again(fleet, type_):
    publish_to_many_lanes(fleet, LANES[:200])
    for job in ("first!", "second!"):  # neither old nor urgent
        fleet.publish(job, type_, rules="key=k limit=1")
    publish_to_many_lanes(fleet, LANES[200:])
    fleet.join("gives it back", type_)
    assert fleet.jobs("gives it back") == ["first!"]
    fleet.scheduler.leave("gives it back")
    fleet.scheduler.tick()
    fleet.join("another", type_)
    assert fleet.jobs("another") == ["first!"]


def test_a_job_that_is_published_beside_one_that_stands_in_vain_starts_with_the_next_tick(fleet):
    fleet.join("idle", *TYPES_OF_KEY)
    fleet.scheduler.pause("*")
    publish_to_many_lanes(fleet, LANES[:80])  # as many as a call closes
    fleet.scheduler.client.delete(Keys().key("pauses"), Keys().key("type_rules"))  # a resume would fill all types
    fleet.scheduler.client.hdel(Keys().key("heads"), "!")
    fleet.scheduler.client.zadd(Keys().key("held", "k"), {"somebody!": 1})
    type_ = next(type_ for type_ in TYPES_OF_KEY if standing(fleet, type_))
    fleet.publish("free", type_)
    assert fleet.jobs("idle") == []
    fleet.scheduler.client.zadd(Keys().key("due_keys"), {"k": 0})
    fleet.scheduler.tick()
    assert fleet.jobs("idle") == ["free"]


def test_jobs_of_a_rate_in_very_many_lanes_start_no_faster(fleet):
    publish_to_many_lanes(fleet, rules="key=rate%3Ar rate=1/64000000")
    fleet.scheduler.tick()
    for number in range(5):
        fleet.join(f"worker{number}", *TYPES_OF_KEY)
    fleet.scheduler.tick()
    assert sum(len(fleet.jobs(f"worker{number}")) for number in range(5)) == 1
    assert fleet.scheduler.most() < MOST_COMMANDS


# -- a worker of very many types


def test_a_sync_of_a_worker_with_very_many_types_chooses_among_some(fleet):
    fleet.join("worker", *TYPES, slots=0)
    jobs = [fleet.made([f"job-of-{type_}"], type_, on_demand=type_ == TYPES[-1]) for type_ in TYPES]
    fleet.scheduler.publish(*[job for of_type in jobs for job in of_type])
    fleet.scheduler.calls.clear()
    fleet.sync("worker", slots=0)
    assert fleet.scheduler.most() < 30, "no slot is free"
    fleet.sync("worker", slots=5)
    assert f"job-of-{TYPES[-1]}" in fleet.jobs("worker"), "what is on demand is looked at first"
    fleet.sync("worker", slots=500)
    assert len(fleet.claims("worker")) == 500
    assert fleet.scheduler.most() < MOST_COMMANDS + 500, "each counts its wait"
