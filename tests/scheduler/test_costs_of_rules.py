"""The work of one invocation is bounded for any number of limits and sub-lanes; later invocations continue it."""

import pytest

from celery_affinity.scheduler.messages import EndArguments
from celery_affinity.schema.constants import MAX_CLAIMS, MAX_FILLED
from celery_affinity.schema.keys import Keys

from ..support.counting import Counting
from ..support.scripted_fleet import ScriptedFleet

TYPES = [f"type{number:03}" for number in range(1_000)]

#: Commands of an invocation that takes well below 5 ms: a command takes 2 to 4 µs.
MAX_COMMANDS = 1_000


@pytest.fixture
def fleet(redis_client):
    fleet = ScriptedFleet(Counting(redis_client, Keys()))
    # No worker here sends heartbeats, even in a long test.
    fleet.scheduler.configure({"worker_timeout_us": "3600000000"})
    return fleet


def limits(number, types=TYPES):
    return {"limits": " ".join(f"type%3A{type_}={number}" for type_ in types)}


def rule(fleet, type_):
    return (fleet.scheduler.client.hget(Keys().key("type_rules"), type_) or b"").decode()


def tick_once(fleet):
    """Tick like a dispatcher that is killed after one invocation. Return True if there was more to do."""
    again, *_ = fleet.scheduler._run("tick")
    return bool(again)


# -- limits of a thousand types


def test_many_limits_are_set_together_and_opened_in_parts(fleet):
    fleet.scheduler.configure(limits(3))
    assert fleet.scheduler.most() < 40
    assert {rule(fleet, type_) for type_ in TYPES} == {"limit=3 counting"}
    fleet.scheduler.tick()
    assert fleet.scheduler.most() < MAX_COMMANDS
    assert {rule(fleet, type_) for type_ in TYPES} == {"limit=3"}
    ticks = [name for name, *_ in fleet.scheduler.calls].count("tick")
    assert ticks == len(TYPES) / MAX_FILLED + 1
    assert not fleet.scheduler.client.exists(Keys().key("recount"))


def test_types_left_closed_by_a_killed_dispatcher_are_opened(fleet):
    fleet.join("worker", TYPES[-1])
    fleet.scheduler.configure(limits(1))
    fleet.publish("job", TYPES[-1])
    assert tick_once(fleet)
    assert fleet.jobs("worker") == []
    assert rule(fleet, TYPES[0]) == "limit=1"
    assert rule(fleet, TYPES[-1]) == "limit=1 counting"
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == ["job"]


def test_limits_that_change_while_types_open_leave_none_closed(fleet):
    fleet.scheduler.configure(limits(1))
    assert tick_once(fleet)
    fleet.scheduler.configure(limits(1, TYPES[:10] + TYPES[500:]))  # the types have other positions in the setting
    fleet.scheduler.tick()
    assert {rule(fleet, type_) for type_ in TYPES[:10] + TYPES[500:]} == {"limit=1"}
    assert {rule(fleet, type_) for type_ in TYPES[10:500]} == {""}


def test_many_changed_limits_apply_or_close_their_types_immediately(fleet):
    fleet.configure_and_tick(limits(1))
    fleet.scheduler.configure(limits(2))
    assert fleet.scheduler.most() < 200
    rules = [rule(fleet, type_) for type_ in TYPES]
    assert rules.count("limit=2") == MAX_FILLED
    assert rules.count("limit=2 counting") == len(TYPES) - MAX_FILLED
    fleet.scheduler.tick()
    assert {rule(fleet, type_) for type_ in TYPES} == {"limit=2"}


def test_repair_counts_claims_for_types_that_stay_closed(fleet):
    fleet.scheduler.configure(limits(1))
    fleet.scheduler.client.delete(Keys().key("recount"))
    assert fleet.scheduler.repair() == [f"{Keys().key('recount')}: nothing instead of 0"]
    fleet.scheduler.tick()
    assert {rule(fleet, type_) for type_ in TYPES} == {"limit=1"}


def test_many_removed_limits_cost_little_and_open_their_types(fleet):
    fleet.join("worker", *TYPES[:30], slots=30)
    fleet.configure_and_tick(limits(0))
    for type_ in TYPES[:30]:
        fleet.publish(f"job-of-{type_}", type_)
    assert fleet.jobs("worker") == []
    fleet.scheduler.configure({"limits": ""})
    assert len(fleet.jobs("worker")) == 30
    assert fleet.scheduler.most() < MAX_COMMANDS
    assert not fleet.scheduler.client.exists(Keys().key("type_rules"))


@pytest.mark.parametrize("workers", [1, 3, 40], ids=["of one worker", "of some", "of many"])
def test_many_claims_are_counted_in_parts(fleet, workers):
    claims = 1_200
    for number in range(workers):
        fleet.join(f"worker{number}", "pdf", slots=claims // workers)
    fleet.scheduler.publish(*fleet.made([f"job{number}" for number in range(claims)], "pdf"))
    fleet.scheduler.configure(limits(claims, ["pdf"]))
    fleet.scheduler.calls.clear()
    calls = 1
    while tick_once(fleet):
        calls += 1
    assert fleet.scheduler.most() < MAX_COMMANDS
    assert calls >= claims / (2 * MAX_CLAIMS)
    assert fleet.scheduler.client.zcard(Keys().key("type_running", "pdf")) == claims
    assert rule(fleet, "pdf") == f"limit={claims} full"


def test_many_claims_without_a_limit_are_checked_in_parts(fleet):
    claims = 1_200
    for number in range(3):
        fleet.join(f"worker{number}", "excel", slots=claims // 3)
    fleet.scheduler.publish(*fleet.made([f"job{number}" for number in range(claims)], "excel"))
    fleet.scheduler.configure(limits(1, ["pdf"]))
    fleet.scheduler.calls.clear()
    while tick_once(fleet):
        pass
    assert fleet.scheduler.most() < MAX_COMMANDS
    assert rule(fleet, "pdf") == "limit=1"


def test_claims_of_a_worker_leaving_during_counting_are_excluded(fleet):
    for worker in ("first", "second"):
        fleet.join(worker, "pdf", slots=300)
    fleet.scheduler.publish(*fleet.made([f"job{number}" for number in range(600)], "pdf"))
    fleet.scheduler.configure(limits(600, ["pdf"]))
    assert tick_once(fleet)
    fleet.scheduler.client.delete(Keys().key("heads"))
    fleet.scheduler.leave("first")
    fleet.scheduler.tick()
    assert fleet.scheduler.client.zcard(Keys().key("type_running", "pdf")) == len(fleet.claims("second"))


# -- a key whose jobs wait in hundreds of lanes

TYPES_OF_KEY = TYPES[:20]
LANES = [
    (type_, priority, on_demand) for type_ in TYPES_OF_KEY for priority in range(11) for on_demand in (False, True)
]


def publish_to_many_lanes(fleet, lanes=LANES, rules="key=k limit=1"):
    """Publish one job of a key in each of *lanes*. Return the job ids."""
    jobs = [f"{type_}-{priority}-{int(on_demand)}!" for type_, priority, on_demand in lanes]
    for job, (type_, priority, on_demand) in zip(jobs, lanes, strict=True):
        fleet.publish(job, type_, priority=priority, on_demand=on_demand, rules=rules)
    return jobs


def standing(fleet, type_):
    """Return the number of a type's jobs in lanes."""
    lanes = fleet.scheduler.client.scan_iter(Keys().key("lane", type_, "*"))
    return sum(fleet.scheduler.client.zcard(lane) for lane in lanes)


@pytest.fixture
def busy(fleet):
    """A claim of key "k", for which jobs wait in hundreds of lanes of types that the worker does not serve."""
    fleet.join("worker", "pdf")
    fleet.publish("holder!", "pdf", rules="key=k limit=1")
    (claim,) = fleet.inbox("worker")
    publish_to_many_lanes(fleet)
    fleet.scheduler.calls.clear()
    return claim


@pytest.mark.slow_on_redis
def test_key_over_many_lanes_changes_some_per_invocation(fleet):
    fleet.join("worker", *TYPES_OF_KEY)
    jobs = publish_to_many_lanes(fleet)
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.calls.clear()
    started = [claim.job_id]
    while following := fleet.end("worker", claim):
        (claim,) = following
        started.append(claim.job_id)
        fleet.scheduler.tick()
    assert fleet.scheduler.most() < MAX_COMMANDS
    assert sorted(started) == sorted(jobs)


def test_urgent_job_is_admitted_first(fleet, busy):
    fleet.publish("urgent!", "pdf", priority=10, on_demand=True, rules="key=k limit=1")
    (claim,) = fleet.end("worker", busy)
    assert claim.job_id == "urgent!"


def test_old_job_is_admitted_first(fleet):
    fleet.join("worker", "pdf")
    for job in ("holder!", "old!"):
        fleet.publish(job, "pdf", rules="key=k limit=1")
    (claim,) = fleet.inbox("worker")
    publish_to_many_lanes(fleet)
    (claim,) = fleet.end("worker", claim)
    assert claim.job_id == "old!"


def test_tick_continues_with_the_remaining_lanes(fleet, busy):
    publish_to_many_lanes(fleet, [("pdf", 0, False)])
    assert fleet.end("worker", busy) == [], "neither old nor urgent"
    assert ["tick"] in fleet.signs("worker")
    assert not fleet.scheduler.client.exists(Keys().key("held", "k"))
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == ["pdf-0-0!"]
    assert fleet.scheduler.most() < MAX_COMMANDS


def opened(fleet, busy):
    """Let the key admit all those jobs, and take it again. Return the numbers of jobs that stay admitted, by type."""
    fleet.end("worker", busy)
    fleet.scheduler.tick()
    assert sum(standing(fleet, type_) for type_ in TYPES_OF_KEY) == len(LANES)
    fleet.publish("holder-2!", "pdf", priority=10, on_demand=True, rules="key=k limit=1")
    assert fleet.jobs("worker") == ["holder-2!"]
    in_vain = {type_: standing(fleet, type_) for type_ in TYPES_OF_KEY}
    assert 0 < sum(in_vain.values()) < len(LANES)
    return in_vain


def test_no_job_starts_after_its_key_was_taken(fleet, busy):
    in_vain = opened(fleet, busy)
    for type_ in in_vain:
        fleet.join(f"worker-of-{type_}", type_)
    assert [fleet.jobs(f"worker-of-{type_}") for type_ in in_vain] == [[]] * len(TYPES_OF_KEY)
    fleet.scheduler.tick()
    assert sum(standing(fleet, type_) for type_ in in_vain) == 0


def test_each_admitted_job_starts_eventually(fleet, busy):
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
def test_job_requeued_while_its_lanes_are_closed_waits_again(fleet, type_):
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


def test_job_next_to_a_stale_admission_starts_at_ticks(fleet):
    fleet.join("idle", *TYPES_OF_KEY)
    fleet.scheduler.pause("*")
    publish_to_many_lanes(fleet, LANES[:80])  # as many as one invocation closes
    fleet.scheduler.client.delete(Keys().key("pauses"), Keys().key("type_rules"))  # a resume would fill all types
    fleet.scheduler.client.hdel(Keys().key("heads"), "!")
    fleet.scheduler.client.zadd(Keys().key("held", "k"), {"somebody!": 1})
    type_ = next(type_ for type_ in TYPES_OF_KEY if standing(fleet, type_))
    fleet.publish("free", type_)
    assert fleet.jobs("idle") == []
    fleet.scheduler.client.zadd(Keys().key("due_keys"), {"k": 0})
    fleet.scheduler.tick()
    assert fleet.jobs("idle") == ["free"]


def test_jobs_of_one_rate_in_many_lanes_keep_it(fleet):
    publish_to_many_lanes(fleet, rules="key=rate%3Ar rate=1/64000000")
    fleet.scheduler.tick()
    for number in range(5):
        fleet.join(f"worker{number}", *TYPES_OF_KEY)
    fleet.scheduler.tick()
    assert sum(len(fleet.jobs(f"worker{number}")) for number in range(5)) == 1
    assert fleet.scheduler.most() < MAX_COMMANDS


# -- a worker of a thousand types


def test_sync_of_a_worker_with_many_types_compares_some(fleet):
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
    assert fleet.scheduler.most() < MAX_COMMANDS + 500, "each counts its wait"
