"""Every schedule obeys the overtaking bound, and a schedule that breaks it is detected."""

from dataclasses import replace

from hypothesis import given, settings

from celery_affinity.lab import fast_engine
from celery_affinity.lab.replay import PassedJob, jobs_beyond_bound
from celery_affinity.lab.scenario import Schedule, ScheduledRun

from ..support.lab_scenarios import S, job, scenario, worker
from ..support.random_scenarios import scenarios

#: Weights where only rarity can overtake an on-demand job of the highest priority.
LOW = {"rarity_weight": "16", "age_weight": "16"}


@settings(max_examples=100)
@given(scenarios())
def test_fast_engine_obeys_the_overtaking_bound(given_scenario):
    assert jobs_beyond_bound(fast_engine.schedule_fast(given_scenario)) == []


def passed(*parts, runs, **fields):
    """Return the violations of a schedule whose claims are *runs*: number, worker, claim time and end time in s."""
    made = tuple(ScheduledRun(number, name, claimed * S, ended * S) for number, name, claimed, ended in runs)
    return jobs_beyond_bound(Schedule(scenario(*parts, settings={**LOW, **fields.pop("settings", {})}, **fields), made))


URGENT = {"priority": 10, "on_demand": True}
RUNS = [(0, "w", 0, 5), (2, "w", 5, 6), (1, "w", 6, 7)]


def test_job_claimed_first_beyond_the_bound_is_detected():
    jobs = [job(0, took_s=5), job(1, 1, **URGENT), job(2, 2, **URGENT)]
    assert passed(*jobs, runs=RUNS) == [PassedJob(1, 2, 5 * S, 1 * S, 1.0 * S)]
    closer = [*jobs[:2], job(2, 1.999, **URGENT)]
    assert passed(*closer, runs=RUNS) == []


def test_head_starts_count_for_the_bound():
    jobs = [job(0, took_s=5), job(1, 1, **URGENT), job(2, 2, **URGENT)]
    made = Schedule(
        scenario(*jobs, settings=LOW), tuple(ScheduledRun(n, "w", at * S, end * S) for n, _, at, end in RUNS)
    )
    assert len(jobs_beyond_bound(made)) == 1
    assert jobs_beyond_bound(replace(made, head_starts={2: 1})) == []
    (beyond,) = jobs_beyond_bound(replace(made, head_starts={1: 5, 2: 5}))
    assert beyond.later_us == S


def test_slot_of_other_types_overtakes_no_job():
    jobs = [job(0, took_s=5), job(1, 1, type_="xls", **URGENT), job(2, 2, **URGENT)]
    assert passed(worker("w"), *jobs, runs=RUNS) == []
    assert len(passed(worker("w", "pdf", "xls"), *jobs, runs=RUNS)) == 1


def test_jobs_blocked_by_rules_are_not_overtaken():
    jobs = [job(0, took_s=5, type_="xls"), job(1, 1, type_="xls", **URGENT), job(2, 2, **URGENT)]
    fleet = [worker("w", "pdf", "xls", slots=2)]
    runs = [(0, "w", 0, 9), (2, "w", 5, 6), (1, "w", 9, 10)]
    assert len(passed(*fleet, *jobs, runs=runs)) == 1
    assert passed(*fleet, *jobs, runs=runs, paused=("xls",)) == []
    assert passed(*fleet, *jobs, runs=runs, settings={"limits": "type%3Axls=1"}) == []
    assert len(passed(*fleet, *jobs, runs=runs, settings={"limits": "type%3Axls=2"})) == 1
    for keyed in ({"exclusive": "k"}, {"rate": "k"}, {"merge": "k"}):
        assert passed(*fleet, jobs[0], replace(jobs[1], **keyed), jobs[2], runs=runs) == []
    of_tenant = [jobs[0], replace(jobs[1], tenant="t"), jobs[2]]
    assert len(passed(*fleet, *of_tenant, runs=runs)) == 1
    assert passed(*fleet, *of_tenant, runs=runs, settings={"tenants": "t=max:1"}) == []
    assert passed(*fleet, *jobs, runs=runs, settings={"reserve": "pdf:queued=1"}) == []


def test_job_arriving_with_the_claim_is_not_overtaken():
    jobs = [job(0, took_s=5), job(1, 5, enqueued_s=1, **URGENT), job(2, 2, **URGENT)]
    assert passed(*jobs, runs=RUNS) == []
