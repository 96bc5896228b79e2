"""The overtaking bound holds in every schedule, and a schedule that breaks it is found out."""

from dataclasses import replace

from hypothesis import given, settings

from celery_affinity.lab import fast_engine
from celery_affinity.lab.replay import PassedJob, jobs_beyond_bound
from celery_affinity.lab.scenario import Schedule, ScheduledRun

from ..support.lab_scenarios import S, job, scenario, worker
from ..support.random_scenarios import scenarios

#: D of a job with the highest priority, on demand: only rarity is against it.
LOW = {"rarity_weight": "16", "age_weight": "16"}


@settings(max_examples=100)
@given(scenarios())
def test_no_schedule_of_the_twin_passes_a_job_beyond_its_bound(given_scenario):
    assert jobs_beyond_bound(fast_engine.schedule_fast(given_scenario)) == []


def passed(*parts, runs, **fields):
    """Return what is found of a schedule whose claims are *runs*: number, worker, time of claim, time of end."""
    made = tuple(ScheduledRun(number, name, claimed * S, ended * S) for number, name, claimed, ended in runs)
    return jobs_beyond_bound(Schedule(scenario(*parts, settings={**LOW, **fields.pop("settings", {})}, **fields), made))


URGENT = {"priority": 10, "on_demand": True}
RUNS = [(0, "w", 0, 5), (2, "w", 5, 6), (1, "w", 6, 7)]


def test_a_job_that_came_a_bound_later_and_went_first_is_found():
    jobs = [job(0, took_s=5), job(1, 1, **URGENT), job(2, 2, **URGENT)]
    assert passed(*jobs, runs=RUNS) == [PassedJob(1, 2, 5 * S, 1 * S, 1.0 * S)]
    closer = [*jobs[:2], job(2, 1.999, **URGENT)]
    assert passed(*closer, runs=RUNS) == []


def test_a_slot_that_does_not_fit_passes_nobody():
    jobs = [job(0, took_s=5), job(1, 1, type_="xls", **URGENT), job(2, 2, **URGENT)]
    assert passed(worker("w"), *jobs, runs=RUNS) == []
    assert len(passed(worker("w", "pdf", "xls"), *jobs, runs=RUNS)) == 1


def test_what_a_pause_a_limit_or_a_key_keeps_back_is_not_passed():
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


def test_a_job_that_arrives_with_the_claim_did_not_wait():
    jobs = [job(0, took_s=5), job(1, 5, enqueued_s=1, **URGENT), job(2, 2, **URGENT)]
    assert passed(*jobs, runs=RUNS) == []
