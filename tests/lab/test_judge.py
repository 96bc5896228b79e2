"""The exact engine runs the server functions, so it obeys every rule. `test_twin` tests the rules of both engines."""

import pytest

from celery_affinity.errors import OptionError
from celery_affinity.lab import scripts_engine

from ..support.lab_scenarios import claims, job, order, scenario, worker

FLEET = worker("w", slots=3)


@pytest.fixture
def exact(valkey, redis_client):
    def schedule(*parts, **fields):
        return scripts_engine.schedule_exact(scenario(*parts, **fields), client=redis_client)

    return schedule


def test_key_admits_as_many_jobs_as_its_limit(exact):
    found = exact(FLEET, *(job(nth, exclusive="k", exclusive_limit="2") for nth in range(3)))
    assert [at for *_, at, _ in claims(found)] == [0, 0, 1]
    jobs = [job(0, exclusive="a b", exclusive_limit="0"), job(1, exclusive="c")]
    assert order(exact(FLEET, *jobs, settings={"limits": "type%3Axls=1"})) == [1]


def test_tick_runs_before_jobs_that_arrive_simultaneously(exact):
    jobs = [job(nth, rate="k", rate_limit="1/m") for nth in range(2)]
    assert order(exact(worker("w"), *jobs, job(2, 60))) == [0, 1, 2]


def test_merged_calls_run_as_long_as_the_longest(exact):
    alone, merged = [job(nth) for nth in range(3)], [job(nth, took_s=nth, merge="k") for nth in range(3, 6)]
    found = exact(FLEET, *alone, *merged, job(6, 2, merge="k"))
    assert claims(found)[3:] == [(3, "w", 1, 6), (4, "w", 1, 6), (5, "w", 1, 6), (6, "w", 2, 3)]


def test_tenants_take_turns_by_fair_share(exact):
    jobs = [*(job(nth, tenant="t") for nth in range(6)), *(job(nth, tenant="u") for nth in range(6, 9))]
    assert order(exact(FLEET, *jobs)) == [*range(9)]
    assert order(exact(FLEET, *jobs, settings={"tenant_turns": "share"})) == [0, 1, 2, 6, 7, 8, 3, 4, 5]


def test_reserve_keeps_slots_for_other_jobs(exact):
    jobs = [*(job(nth) for nth in range(3)), job(3, on_demand=True)]
    assert order(exact(FLEET, *jobs, settings={"reserve": "pdf:queued=1"})) == [0, 1, 3, 2]


def test_job_can_have_all_rules(exact):
    jobs = [job(nth, exclusive="k", rate="r", rate_limit="1/s", tenant="t", merge=f"m{nth}") for nth in range(3)]
    assert claims(exact(FLEET, *jobs)) == [(0, "w", 0, 1), (1, "w", 1, 2), (2, "w", 2, 3)]


def test_schedule_ends_without_jobs_that_cannot_start(exact):
    found = exact(FLEET, job(0, exclusive="k"), job(1, type_="xls", rate="r", rate_limit="1/h"), job(2, exclusive="k"))
    assert order(found) == [0, 2]
    assert order(exact(FLEET, job(0, exclusive="k"), settings={"limits": "k=0"})) == []


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"exclusive": "k", "exclusive_limit": "-1"}, "exclusive_limit must be a whole number"),
        (
            {"rate": "k", "rate_limit": "many"},
            "rate_limit must be a whole number above 0 for each s, m or h, got: 'many'",
        ),
        ({"rate": "k"}, "rate_limit must be"),
    ],
)
def test_invalid_limit_of_a_job_is_named(exact, fields, complaint):
    with pytest.raises(OptionError, match=f"job 0 of the trace: {complaint}"):
        exact(job(0, **fields))


def test_reversed_priorities_are_obeyed(exact):
    jobs = [job(0, took_s=5), job(1, 1, priority=9), job(2, 2, priority=1)]
    assert order(exact(*jobs)) == [0, 1, 2]
    assert order(exact(*jobs, settings={"priority_reversed": "1"})) == [0, 2, 1]


def test_exact_engine_starts_its_own_server():
    assert order(scripts_engine.schedule_exact(scenario(job(0), job(1)))) == [0, 1]
