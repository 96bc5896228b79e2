"""The judge is the library itself: it keeps every rule of a trace's jobs. `test_twin` has the rules that both know."""

import pytest

from celery_affinity.errors import OptionError
from celery_affinity.lab import scripts_engine

from ..support.lab_scenarios import claims, job, order, scenario, worker

FLEET = worker("w", slots=3)


@pytest.fixture
def judged(valkey, redis_client):
    def schedule(*parts, **fields):
        return scripts_engine.schedule_exact(scenario(*parts, **fields), client=redis_client)

    return schedule


def test_a_key_with_a_limit_lets_so_many_run(judged):
    found = judged(FLEET, *(job(nth, exclusive="k", exclusive_limit="2") for nth in range(3)))
    assert [at for *_, at, _ in claims(found)] == [0, 0, 1]


def test_a_key_that_is_closed_lets_none_run(judged):
    jobs = [job(0, exclusive="a b", exclusive_limit="0"), job(1, exclusive="c")]
    assert order(judged(FLEET, *jobs, settings={"limits": "type%3Axls=1"})) == [1]


def test_a_tick_comes_before_what_arrives_at_its_time(judged):
    jobs = [job(nth, rate="k", rate_limit="1/m") for nth in range(2)]
    assert order(judged(worker("w"), *jobs, job(2, 60))) == [0, 1, 2]


def test_calls_that_merge_are_one_run_as_long_as_the_longest(judged):
    alone, merged = [job(nth) for nth in range(3)], [job(nth, took_s=nth, merge="k") for nth in range(3, 6)]
    found = judged(FLEET, *alone, *merged, job(6, 2, merge="k"))
    assert claims(found)[3:] == [(3, "w", 1, 6), (4, "w", 1, 6), (5, "w", 1, 6), (6, "w", 2, 3)]


def test_tenants_take_turns_by_shares(judged):
    jobs = [*(job(nth, tenant="t") for nth in range(6)), *(job(nth, tenant="u") for nth in range(6, 9))]
    assert order(judged(FLEET, *jobs)) == [*range(9)]
    assert order(judged(FLEET, *jobs, settings={"tenant_turns": "share"})) == [0, 1, 2, 6, 7, 8, 3, 4, 5]


def test_a_reserve_keeps_slots_for_others(judged):
    jobs = [*(job(nth) for nth in range(3)), job(3, on_demand=True)]
    assert order(judged(FLEET, *jobs, settings={"reserve": "pdf:queued=1"})) == [0, 1, 3, 2]


def test_all_rules_of_a_job_go_together(judged):
    jobs = [job(nth, exclusive="k", rate="r", rate_limit="1/s", tenant="t", merge=f"m{nth}") for nth in range(3)]
    assert claims(judged(FLEET, *jobs)) == [(0, "w", 0, 1), (1, "w", 1, 2), (2, "w", 2, 3)]


def test_jobs_that_can_never_start_end_no_schedule(judged):
    found = judged(FLEET, job(0, exclusive="k"), job(1, type_="xls", rate="r", rate_limit="1/h"), job(2, exclusive="k"))
    assert order(found) == [0, 2]
    assert order(judged(FLEET, job(0, exclusive="k"), settings={"limits": "k=0"})) == []


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"exclusive": "k", "exclusive_limit": "-1"}, "job 0 of the trace: exclusive_limit must be a whole number"),
        (
            {"rate": "k", "rate_limit": "many"},
            "job 0 of the trace: rate_limit must be a whole number above 0 for each s, m or h, got: 'many'",
        ),
        ({"rate": "k"}, "job 0 of the trace: rate_limit must be"),
    ],
)
def test_a_limit_that_is_none_is_named(judged, fields, complaint):
    with pytest.raises(OptionError, match=complaint):
        judged(job(0, **fields))


def test_priorities_that_are_reversed_are_read_so(judged):
    jobs = [job(0, took_s=5), job(1, 1, priority=9), job(2, 2, priority=1)]
    assert order(judged(*jobs)) == [0, 1, 2]
    assert order(judged(*jobs, settings={"priority_reversed": "1"})) == [0, 2, 1]


def test_the_judge_starts_a_server_of_its_own():
    assert order(scripts_engine.schedule_exact(scenario(job(0), job(1)))) == [0, 1]
