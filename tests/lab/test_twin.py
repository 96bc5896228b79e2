"""The twin makes the claims of the library, one by one, and refuses what it does not know."""

import os
import time

import pytest
from hypothesis import HealthCheck, given, settings

from celery_affinity.lab import fast_engine, replay, scripts_engine
from celery_affinity.lab.fast_engine import UnknownRuleError
from celery_affinity.lab.scenario import scenario_of
from examples.made_up_trace import make_unscheduled

from ..support.lab_scenarios import S, claims, job, order, scenario, worker
from ..support.random_scenarios import scenarios

#: More of them by hand: ``LAB_EXAMPLES=2000 pytest tests/lab/test_twin.py``, or ``python -m tests.lab.agreement 2000``.
EXAMPLES = int(os.environ.get("LAB_EXAMPLES", "50"))


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_scenario=scenarios())
def test_judge_and_twin_make_the_same_claims_with_the_same_workers(valkey, redis_client, given_scenario):
    assert (
        fast_engine.schedule_fast(given_scenario).runs
        == scripts_engine.schedule_exact(given_scenario, client=redis_client).runs
    )


def both(client, given_scenario):
    """Return the schedule that both engines make."""
    ours = fast_engine.schedule_fast(given_scenario)
    assert ours.runs == scripts_engine.schedule_exact(given_scenario, client=client).runs
    return ours


def test_the_end_of_a_job_and_the_next_claim_of_its_slot_are_one_moment(valkey, redis_client):
    found = both(redis_client, scenario(job(0, took_s=2), job(1, 1, took_s=3)))
    assert claims(found) == [(0, "w", 0, 2), (1, "w", 2, 5)]


def test_a_job_that_arrives_as_another_ends_finds_the_slot_free(valkey, redis_client):
    found = both(redis_client, scenario(job(0, took_s=2), job(1, 2)))
    assert claims(found)[1] == (1, "w", 2, 3)


def test_jobs_end_before_others_arrive(valkey, redis_client):
    found = both(redis_client, scenario(job(0, took_s=2), job(1, 1), job(2, 2, priority=9)))
    assert order(found) == [0, 1, 2]


def test_the_specialist_gets_the_job_and_the_longest_idle_of_two(valkey, redis_client):
    fleet = [worker("both", "pdf", "xls"), worker("late", "pdf", joined_s=1), worker("early", "pdf")]
    found = both(redis_client, scenario(*fleet, job(0, 2), job(1, 3, took_s=9), job(2, 4, took_s=9), job(3, 5)))
    assert [run.worker for run in found.runs] == ["early", "late", "early", "both"]


def test_a_job_that_came_back_is_as_old_as_when_it_came_first(valkey, redis_client):
    found = both(redis_client, scenario(job(0, took_s=5), job(1, 2), job(2, 3, enqueued_s=1)))
    assert order(found) == [0, 2, 1]


def test_a_worker_that_leaves_ends_what_it_runs_and_takes_no_more(valkey, redis_client):
    found = both(redis_client, scenario(worker("w", left_s=1), job(0, took_s=3), job(1, took_s=3)))
    assert claims(found) == [(0, "w", 0, 3)]


def test_a_share_of_the_claims_goes_by_age_also_where_one_call_moves_no_more(valkey, redis_client):
    jobs = [job(nth, nth, took_s=9, priority=(0, 10)[nth % 3 == 0]) for nth in range(30)]
    late = worker("late", slots=14, joined_s=40)
    for percentage in (0, 30, 50, 90):
        found = both(redis_client, scenario(late, *jobs, settings={"priority_percentage": str(percentage)}))
        assert order(found) != sorted(order(found)) or percentage == 0


def test_claims_beyond_the_moves_of_one_call_have_a_choice_of_their_own(valkey, redis_client):
    high = [job(nth, took_s=10 + nth, priority=10) for nth in range(3)]
    low = [job(nth, took_s=7 + nth, priority=0) for nth in range(3, 13)]
    later = [job(nth, 35 + nth / 2, took_s=30, priority=(0, 10)[nth % 2]) for nth in range(20, 32)]
    late = worker("late", slots=13, joined_s=40)
    found = both(redis_client, scenario(late, *high, *low, *later, settings={"priority_percentage": "50"}))
    assert order(found)[13:] == [21, 20, 23, 22, 25, 24, 27, 26, 29, 28, 31, 30]


def test_a_limit_that_opens_lets_a_slot_elsewhere_take_the_job(valkey, redis_client):
    fleet = [worker("a", "pdf"), worker("b", "ocr", "pdf", "xls")]
    jobs = [job(0, took_s=4), job(1, 1), job(2, 2, type_="xls", took_s=9)]
    found = both(redis_client, scenario(*fleet, *jobs, settings={"limits": "type%3Apdf=1"}))
    assert claims(found)[-1] == (1, "a", 4, 5)


def test_a_paused_type_waits_and_so_does_a_type_that_nobody_serves(valkey, redis_client):
    found = both(
        redis_client,
        scenario(worker("w", "pdf", "xls"), job(0), job(1, type_="xls"), job(2, type_="ocr"), paused=("pdf",)),
    )
    assert order(found) == [1]
    assert order(both(redis_client, scenario(job(0), job(1), paused=("*",)))) == []


def test_jobs_of_a_key_run_one_after_the_other_and_others_pass_them(valkey, redis_client):
    jobs = [*(job(nth, exclusive="k") for nth in range(3)), job(3)]
    found = both(redis_client, scenario(worker("w", slots=2), *jobs))
    assert claims(found) == [(0, "w", 0, 1), (3, "w", 0, 1), (1, "w", 1, 2), (2, "w", 2, 3)]


def test_a_tenant_and_a_rate_let_jobs_start_as_they_say(valkey, redis_client):
    rated = both(
        redis_client, scenario(worker("w", slots=2), *(job(nth, rate="k", rate_limit="2/m") for nth in range(4)))
    )
    assert [at for *_, at, _ in claims(rated)] == [0, 0, 30, 60]
    tenants = {"tenants": "t=max:1"}
    of_tenant = both(
        redis_client, scenario(worker("w", slots=2), *(job(nth, tenant="t") for nth in range(2)), settings=tenants)
    )
    assert [at for *_, at, _ in claims(of_tenant)] == [0, 1]


def test_a_type_that_has_waited_for_a_key_too_long_has_its_turn(valkey, redis_client):
    fleet = [worker("w", "pdf"), worker("v", "xls")]
    of_key = [job(nth, nth / 2, exclusive="k") for nth in range(20)]
    others = [job(nth, took_s=1 if nth > 40 else 0.5, type_="xls") for nth in range(40, 60)]
    jobs = [*of_key, *others, job(30, 1, type_="xls", exclusive="k")]
    places = []
    for patience_us in ("0", "5000000"):
        found = both(redis_client, scenario(*fleet, *jobs, settings={"key_patience_us": patience_us}))
        places.append(order(found).index(30))
    assert places[1] < places[0]


def test_limits_of_keys_in_the_settings_count_more_than_what_tasks_say(valkey, redis_client):
    jobs = [job(nth, exclusive="k") for nth in range(3)]
    found = both(redis_client, scenario(worker("w", slots=3), *jobs, settings={"limits": "k=2"}))
    assert [at for *_, at, _ in claims(found)] == [0, 0, 1]


#: What the twin says of a job with two keys.
TWO_KEYS = "two keys at once (exclusive, rate, or a tenant with a maximum)"


@pytest.mark.parametrize(
    ("fields", "given_settings", "rule"),
    [
        ({"merge": "k"}, {}, "merging, which job 0 has"),
        ({"exclusive": "k", "rate": "k", "rate_limit": "1/s"}, {}, f"{TWO_KEYS}, which job 0 has"),
        ({"exclusive": "k", "tenant": "t"}, {"tenants": "*=max:1"}, f"{TWO_KEYS}, which job 0 has"),
        ({"tenant": "t"}, {"tenants": "t=max:2,min:1"}, "a minimum of a tenant (the setting 'tenants')"),
        ({"tenant": "t"}, {"tenant_turns": "share"}, "a share of a tenant, which job 0 has"),
        ({}, {"reserve": "pdf:queued=1"}, "a reserve (the setting 'reserve')"),
    ],
)
def test_a_rule_that_the_twin_does_not_know_is_named(fields, given_settings, rule):
    asked = scenario(job(0, **fields), settings=given_settings)
    with pytest.raises(UnknownRuleError) as caught:
        fast_engine.schedule_fast(asked)
    assert str(caught.value) == f"the fast engine does not know {rule}: --engine judge schedules this"
    assert replay.engine_of(asked) == "judge"


def test_a_tenant_without_a_quota_changes_nothing(valkey, redis_client):
    asked = scenario(*(job(nth, nth / 4, tenant="tu"[nth % 2], priority=nth % 2) for nth in range(12)))
    assert order(both(redis_client, asked)) == order(
        fast_engine.schedule_fast(scenario(*(job(nth, nth / 4, priority=nth % 2) for nth in range(12))))
    )


def test_a_key_of_more_lanes_than_a_call_opens_is_refused():
    jobs = [job(nth, type_=str(nth), exclusive="k") for nth in range(51)]
    with pytest.raises(UnknownRuleError, match="a key with more than 50 types, modes and priorities, which job 50 has"):
        fast_engine.schedule_fast(scenario(*jobs))


def test_more_types_than_the_arrows_compare_are_refused():
    wide = scenario(worker("w", *map(str, range(101))), job(0, type_="1"))
    with pytest.raises(UnknownRuleError, match="serve more than 100 types"):
        fast_engine.schedule_fast(wide)
    profiles = [worker(f"w{nth}", "pdf", str(nth)) for nth in range(101)]
    with pytest.raises(UnknownRuleError, match="more than 100 sets of types"):
        fast_engine.schedule_fast(scenario(*profiles, job(0)))


def test_progress_is_stepped_for_each_job():
    steps = iter(range(10))
    fast_engine.schedule_fast(scenario(*(job(nth) for nth in range(4))), steps)
    assert next(steps) == 4


def test_a_day_of_load_takes_a_hundredth_of_its_time():
    """Some 100 times slower than it is, this would still hold: `python -m benchmarks.lab` measures."""
    trace = make_unscheduled(5_000)
    began_s = time.perf_counter()
    fast_engine.schedule_fast(scenario_of(trace))
    assert (time.perf_counter() - began_s) * 100 < trace.length_us / S
