"""Reserves on a server: the slots that a class of jobs leaves free, and the jobs that get them."""

import pytest

from celery_affinity.schema.bounds import Bound
from celery_affinity.settings.reserves import encoded_reserves


def reserve(fleet, **given):
    """Put reserves into force, and count earlier claims."""
    fleet.configure_and_tick({"reserve": encoded_reserves(given) or " "})


def publish(fleet, number, type_="pdf", name="job", **given):
    for each in range(number):
        fleet.publish(f"{name}{each}", type_, **given)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_class_that_leaves_slots_free_has_limited_jobs(fleet, most):
    """One type, 4 slots: "priority 1 runs only if fewer than n run in all" is a reserve of 4 - n for it."""
    reserve(fleet, pdf={"1": 4 - most})
    fleet.join("worker", "pdf", slots=4)
    publish(fleet, 6, priority=1)
    claims = fleet.inbox("worker")
    assert len(claims) == most
    publish(fleet, 4, name="urgent", priority=9)
    urgent = fleet.inbox("worker")
    assert len(urgent) == 4 - most
    running = [*claims, *urgent]
    while running:
        ended, *running = running
        started = fleet.end("worker", ended)
        running += started
        for each in started:  # no urgent job waits, so fewer than n ran in all
            assert each.job_id.startswith("urgent") or len(running) <= most
    assert fleet.state("job5") == "done"


def test_on_demand_job_starts_while_queued_ones_wait(fleet):
    reserve(fleet, video={"queued": 1})
    fleet.join("one", "video", slots=2)
    fleet.join("versatile", "video", "report")
    publish(fleet, 6, "video")
    assert len(fleet.inbox("one")) == 2
    assert fleet.inbox("versatile") == []
    fleet.publish("asked", "report", on_demand=True)
    assert fleet.jobs("versatile") == ["asked"]


def test_reserved_slot_goes_to_another_class_of_the_type(fleet):
    reserve(fleet, pdf={"queued": 1})
    fleet.join("worker", "pdf", slots=2)
    publish(fleet, 3)
    assert fleet.jobs("worker") == ["job0"]
    fleet.publish("asked", "pdf", on_demand=True)
    assert fleet.jobs("worker") == ["asked"]


def test_job_gets_the_most_specialised_of_the_reserved_slots(fleet):
    reserve(fleet, pdf={"queued": 1})
    fleet.join("versatile", "pdf", "excel")
    fleet.join("special", "pdf")
    fleet.publish("sheet", "excel")
    publish(fleet, 1)
    (sheet,) = fleet.inbox("versatile")
    assert fleet.jobs("special") == []
    assert fleet.end("versatile", sheet) == []
    assert fleet.jobs("special") == ["job0"]


def test_largest_matching_reserve_applies(fleet):
    reserve(fleet, **{"pdf": {"queued": 1, "0-4": "75%"}, "*": {"0": 2}})
    fleet.join("worker", "pdf", slots=4)
    publish(fleet, 4)
    assert len(fleet.inbox("worker")) == 1
    publish(fleet, 4, name="higher", priority=5)
    assert len(fleet.inbox("worker")) == 2


def test_percentage_of_live_slots_is_rounded_up(fleet):
    reserve(fleet, pdf={"queued": "25%"})
    fleet.join("worker", "pdf", slots=5)
    publish(fleet, 5)
    assert len(fleet.inbox("worker")) == 3
    fleet.join("other", "pdf", slots=3)  # 2 of 8
    assert len(fleet.inbox("other")) == 2


def test_class_remains_possible_when_the_fleet_shrinks(fleet):
    reserve(fleet, pdf={"queued": 2})
    for name in ("one", "two", "three"):
        fleet.join(name, "pdf")
    publish(fleet, 2)
    assert [fleet.state(f"job{each}") for each in range(2)] == ["claimed", "pending"]
    for name in ("one", "two"):
        fleet.scheduler.leave(name)
    assert sorted(fleet.state(f"job{each}") for each in range(2)) == ["claimed", "pending"]
    (claim,) = fleet.inbox("three")
    assert [each.job_id for each in fleet.end("three", claim)] == ["job1"]


def test_class_runs_singly_next_to_a_permanent_job(fleet):
    reserve(fleet, pdf={"queued": "100%"})
    fleet.join("worker", "pdf", slots=2)
    fleet.publish("permanent", "pdf", on_demand=True)
    publish(fleet, 3)
    _, claim = fleet.inbox("worker")
    (claim,) = fleet.end("worker", claim)
    (claim,) = fleet.end("worker", claim)
    assert claim.job_id == "job2"
    assert fleet.end("worker", claim) == []


def test_class_continues_when_its_last_worker_changes_types(fleet):
    reserve(fleet, pdf={"queued": "100%"})
    fleet.join("one", "pdf")
    fleet.join("two", "pdf")
    publish(fleet, 2)
    (claim,) = fleet.inbox("one")
    fleet.join("one", "excel")
    assert fleet.jobs("two") == []
    fleet.end("one", claim)
    assert fleet.jobs("two") == ["job1"]


def test_claims_from_before_a_reserve_are_counted_by_class(fleet):
    fleet.join("worker", "pdf", slots=3)
    fleet.publish("early", "pdf")
    fleet.publish("asked", "pdf", on_demand=True)
    early, _ = fleet.inbox("worker")
    fleet.scheduler.configure({"reserve": "pdf:queued=100%"})
    fleet.publish("late", "pdf")
    fleet.scheduler.tick()
    assert fleet.inbox("worker") == []
    assert [each.job_id for each in fleet.end("worker", early)] == ["late"]


def test_drained_or_blocked_worker_only_reduces_slots(fleet):
    reserve(fleet, pdf={"queued": 1})
    fleet.join("one", "pdf", slots=2)
    fleet.join("two", "pdf")
    fleet.scheduler.heartbeat("two", loop_runs=False)
    publish(fleet, 2)
    assert fleet.jobs("one") == ["job0"]
    fleet.scheduler.heartbeat("two", loop_runs=True)
    assert fleet.state("job1") == "claimed"
    fleet.sync("two", slots=1, draining=True)
    fleet.publish("more", "pdf")
    assert fleet.state("more") == "pending"


def test_smaller_or_removed_reserve_starts_waiting_jobs(fleet):
    reserve(fleet, pdf={"queued": 3})
    fleet.join("worker", "pdf", slots=4)
    publish(fleet, 4)
    assert len(fleet.inbox("worker")) == 1
    reserve(fleet, pdf={"queued": 2})
    assert len(fleet.inbox("worker")) == 1
    reserve(fleet)
    assert len(fleet.inbox("worker")) == 2


@pytest.mark.parametrize("how", ["has fewer", "leaves"])
def test_fewer_live_slots_reduce_the_percentage(fleet, how):
    """The worker whose slots are removed has no free slot, so it claims no job itself."""
    reserve(fleet, pdf={"queued": "50%"})
    fleet.join("versatile", "pdf", "excel", slots=4)
    publish(fleet, 4, "excel", "sheet")
    fleet.join("special", "pdf", slots=3)
    publish(fleet, 2)
    assert fleet.jobs("special") == [], "4 of 7 are to stay free"
    if how == "leaves":
        fleet.scheduler.leave("versatile")
    else:
        fleet.sync("versatile", slots=1)
    assert fleet.jobs("special") == ["job0"], "2 are to stay free"


def test_more_slots_start_waiting_jobs(fleet):
    reserve(fleet, pdf={"queued": 1})
    fleet.join("worker", "pdf", slots=1)
    publish(fleet, 3)
    assert len(fleet.inbox("worker")) == 1  # a reserve of all slots: one job runs if no other job of its class does
    fleet.sync("worker", slots=3)
    assert len(fleet.inbox("worker")) == 1


def test_lookahead_prefetches_no_job_under_a_reserve(fleet):
    reserve(fleet, pdf={"queued": 1})
    fleet.join("worker", "pdf", slots=2)
    publish(fleet, 2)
    publish(fleet, 3, name="asked", on_demand=True)
    first, second = fleet.inbox("worker")
    following = fleet.end("worker", second, most_ahead=5)
    assert [each.job_id for each in following] == ["asked1", "asked2"]
    assert first.job_id == "job0"
    assert fleet.state("job1") == "pending"


def test_job_ignores_reserves_after_the_patience(fleet):
    fleet.scheduler.configure({"reserve": "pdf:queued=1", "reserve_patience_us": "60000000"})
    fleet.join("worker", "pdf", slots=2)
    publish(fleet, 2)
    assert fleet.jobs("worker") == ["job0"]
    fleet.scheduler.advance(59)
    fleet.sync("worker", slots=2)
    assert fleet.jobs("worker") == []
    fleet.scheduler.advance(1)
    fleet.sync("worker", slots=2)
    assert fleet.jobs("worker") == ["job1"]


def test_claim_by_age_takes_the_oldest_unreserved_job(fleet):
    fleet.scheduler.configure({"priority_percentage": "0"})
    reserve(fleet, pdf={"0": 1})
    fleet.join("worker", "pdf", slots=1)
    fleet.publish("busy", "pdf", priority=9)
    fleet.publish("low", "pdf")
    for job, priority in [("first", 5), ("second", 6), ("third", 5)]:
        fleet.publish(job, "pdf", priority=priority)
    (claim,) = fleet.inbox("worker")
    fleet.sync("worker", slots=2)
    order = fleet.jobs("worker")
    while following := fleet.end("worker", claim):
        (claim,) = following
        order.append(claim.job_id)
    assert order == ["first", "second", "third"]


def test_rare_type_is_first_with_its_unreserved_jobs(fleet):
    reserve(fleet, pdf={"0": 1})
    fleet.join("pdfs", "pdf")
    fleet.join("sheets", "excel", slots=3)
    fleet.publish("busy", "pdf", priority=5)
    publish(fleet, 3, "excel", "sheet")
    fleet.publish("low", "pdf")
    fleet.publish("older", "excel", priority=5)
    fleet.scheduler.advance(0.001)
    fleet.publish("rare", "pdf", priority=5)
    claim = fleet.join_and_claim("both", "pdf", "excel")
    assert claim.job_id == "rare"
    assert [each.job_id for each in fleet.end("both", claim)] == ["older"], "low is kept back"


# -- costs

#: Commands of a release with the next claim without a reserve, for a job without rules.
UNRESERVED = 17


def cost_of_a_release(fleet, client, profiles, reserve):
    """Return the number of commands of a release that starts the next job."""
    client.flushall()
    fleet.scheduler.advance(0)
    fleet.configure_and_tick({"reserve": reserve})
    fleet.join("worker", "pdf", slots=2)
    for number in range(profiles):
        fleet.join(f"other{number}", "pdf", f"own{number}")
        fleet.publish(f"own{number}", f"own{number}")
    publish(fleet, 2, name="asked", on_demand=True)
    publish(fleet, 2)
    first, second = fleet.inbox("worker")
    fleet.end("worker", first)
    client.config_resetstat()
    (following,) = fleet.end("worker", second)
    stats = client.info("commandstats")
    assert following.job_id in ("job0", "job1")
    ours = {"cmdstat_fcall", "cmdstat_info", "cmdstat_config|resetstat"}
    return sum(each["calls"] for name, each in stats.items() if name not in ours)


def test_reserve_costs_releases_of_its_type_some_commands(fleet, redis_client):
    cost = {
        (profiles, reserve): cost_of_a_release(fleet, redis_client, profiles, reserve)
        for profiles in (1, 8, 40)
        for reserve in (" ", "pdf:queued=1", "excel:queued=1")
    }
    for profiles in (1, 8, 40):
        assert cost[profiles, " "] == UNRESERVED
        assert cost[profiles, "excel:queued=1"] <= UNRESERVED + 2
        assert cost[profiles, "pdf:queued=1"] <= UNRESERVED + 22 + min(profiles, 10)


def test_call_that_makes_a_bounded_run_urgent_starts_it(fleet):
    """No reserve blocks the run once an on-demand call has joined it."""
    reserve(fleet, pdf={"queued": 1})
    fleet.join("worker", "pdf", slots=2)
    merged = {"task_name": "tests.task", "rules": "merge=city most=9 bytes=1000000", "bound": Bound(10)}
    fleet.scheduler.publish(*fleet.made(["a+"], "pdf", **merged))
    fleet.scheduler.publish(*fleet.made(["b+"], "pdf", **merged))
    assert fleet.jobs("worker") == ["a+"]
    fleet.scheduler.publish(*fleet.made(["c+"], "pdf", on_demand=True, **merged))
    assert fleet.jobs("worker") == ["b*"]
