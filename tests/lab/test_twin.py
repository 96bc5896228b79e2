"""The fast engine makes the same claims as the server functions, and refuses rules that it does not support."""

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

#: For more examples: ``LAB_EXAMPLES=2000 pytest tests/lab/test_twin.py``, or ``python -m tests.lab.agreement 2000``.
EXAMPLES = int(os.environ.get("LAB_EXAMPLES", "50"))


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_scenario=scenarios())
def test_engines_make_the_same_claims(both, given_scenario):
    both(given_scenario)


@pytest.fixture
def both(valkey, redis_client):
    """Return a function that returns the schedule of a scenario, which is equal for both engines."""

    def schedule(given_scenario):
        fast = fast_engine.schedule_fast(given_scenario)
        exact = scripts_engine.schedule_exact(given_scenario, client=redis_client)
        assert fast.runs == exact.runs
        assert fast.head_starts == exact.head_starts
        return fast

    return schedule


def test_claims_are_made_at_the_expected_times(both, subtests):
    two, keyed = worker("w", slots=2), [job(nth, exclusive="k") for nth in range(3)]
    in_turn = [(0, "w", 0, 1), (3, "w", 0, 1), (1, "w", 1, 2), (2, "w", 2, 3)]
    for name, parts, expected in [
        ("a freed slot is claimed", [job(0, took_s=2), job(1, 1, took_s=3)], [(0, "w", 0, 2), (1, "w", 2, 5)]),
        ("a job arriving at an end starts", [job(0, took_s=2), job(1, 2)], [(0, "w", 0, 2), (1, "w", 2, 3)]),
        ("a leaving worker finishes its job", [worker("w", left_s=1), job(0, took_s=3), job(1)], [(0, "w", 0, 3)]),
        ("jobs of a key run serially while others pass", [two, *keyed, job(3)], in_turn),
    ]:
        with subtests.test(name):
            assert claims(both(scenario(*parts))) == expected


def test_schedule_does_not_depend_on_the_schedule_before(both):
    """A server function caches the points for rarity by fleet, settings and the time of the last change of slots."""
    for rare, common in (("pdf", "xls"), ("xls", "pdf")):
        workers = [worker("both", "pdf", "xls"), worker("one", common, slots=9)]
        busy = [job(nth, 0, 1000, common) for nth in range(9)] + [job(9, 0, 10, rare)]
        waiting = [job(10, 5, 1, "pdf"), job(11, 5, 1, "xls")]
        settings = {"age_weight": "0", "rarity_weight": "1000"}
        last = order(both(scenario(*workers, *busy, *waiting, settings=settings)))[-2:]
        assert last == ([10, 11] if rare == "pdf" else [11, 10])


def test_jobs_are_claimed_in_the_expected_order(both, subtests):
    for name, jobs, expected in [
        ("ends come before arrivals", [job(0, took_s=2), job(1, 1), job(2, 2, priority=9)], [0, 1, 2]),
        ("a returned job keeps its age", [job(0, took_s=5), job(1, 2), job(2, 3, enqueued_s=1)], [0, 2, 1]),
    ]:
        with subtests.test(name):
            assert order(both(scenario(*jobs))) == expected


def test_specialist_then_longest_idle_worker_gets_the_job(both):
    fleet = [worker("both", "pdf", "xls"), worker("late", "pdf", joined_s=1), worker("early", "pdf")]
    found = both(scenario(*fleet, job(0, 2), job(1, 3, took_s=9), job(2, 4, took_s=9), job(3, 5)))
    assert [run.worker for run in found.runs] == ["early", "late", "early", "both"]


def test_priority_percentage_claims_by_age_beyond_one_call(both):
    jobs = [job(nth, nth, took_s=9, priority=(0, 10)[nth % 3 == 0]) for nth in range(30)]
    late = worker("late", slots=14, joined_s=40)
    for percentage in (0, 30, 50, 90):
        found = both(scenario(late, *jobs, settings={"priority_percentage": str(percentage)}))
        assert order(found) != sorted(order(found)) or percentage == 0


def test_claims_beyond_one_call_choose_separately(both):
    high = [job(nth, took_s=10 + nth, priority=10) for nth in range(3)]
    low = [job(nth, took_s=7 + nth, priority=0) for nth in range(3, 13)]
    later = [job(nth, 35 + nth / 2, took_s=30, priority=(0, 10)[nth % 2]) for nth in range(20, 32)]
    late = worker("late", slots=13, joined_s=40)
    found = both(scenario(late, *high, *low, *later, settings={"priority_percentage": "50"}))
    assert order(found)[13:] == [21, 20, 23, 22, 25, 24, 27, 26, 29, 28, 31, 30]


def test_freed_type_limit_lets_another_slot_take_the_job(both):
    fleet = [worker("a", "pdf"), worker("b", "ocr", "pdf", "xls")]
    jobs = [job(0, took_s=4), job(1, 1), job(2, 2, type_="xls", took_s=9)]
    found = both(scenario(*fleet, *jobs, settings={"limits": "type%3Apdf=1"}))
    assert claims(found)[-1] == (1, "a", 4, 5)


def test_paused_and_unserved_types_wait(both):
    found = both(
        scenario(worker("w", "pdf", "xls"), job(0), job(1, type_="xls"), job(2, type_="ocr"), paused=("pdf",)),
    )
    assert order(found) == [1]
    assert order(both(scenario(job(0), job(1), paused=("*",)))) == []


def test_tenant_and_rate_limit_the_starts(both):
    fleet = worker("w", slots=2)
    rated = both(scenario(fleet, *(job(nth, rate="k", rate_limit="2/m") for nth in range(4))))
    assert [at for *_, at, _ in claims(rated)] == [0, 0, 30, 60]
    jobs = [job(nth, tenant="t") for nth in range(2)]
    limited = both(scenario(fleet, *jobs, settings={"tenants": "t=max:1"}))
    assert [at for *_, at, _ in claims(limited)] == [0, 1]


def test_type_waiting_for_a_key_gets_its_turn(both):
    fleet = [worker("w", "pdf"), worker("v", "xls")]
    of_key = [job(nth, nth / 2, exclusive="k") for nth in range(20)]
    others = [job(nth, took_s=1 if nth > 40 else 0.5, type_="xls") for nth in range(40, 60)]
    jobs = [*of_key, *others, job(30, 1, type_="xls", exclusive="k")]
    places = []
    for patience_us in ("0", "5000000"):
        found = both(scenario(*fleet, *jobs, settings={"key_patience_us": patience_us}))
        places.append(order(found).index(30))
    assert places[1] < places[0]


def test_key_limits_in_settings_override_tasks(both):
    jobs = [job(nth, exclusive="k") for nth in range(3)]
    found = both(scenario(worker("w", slots=3), *jobs, settings={"limits": "k=2"}))
    assert [at for *_, at, _ in claims(found)] == [0, 0, 1]


#: The error of the fast engine for a job with two keys.
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
def test_rule_unsupported_by_the_fast_engine_is_named(fields, given_settings, rule):
    unsupported = scenario(job(0, **fields), settings=given_settings)
    with pytest.raises(UnknownRuleError) as caught:
        fast_engine.schedule_fast(unsupported)
    assert str(caught.value) == f"the fast engine does not know {rule}: --engine judge schedules this"
    assert replay.engine_of(unsupported) == "judge"


def test_tenant_without_a_quota_has_no_effect(both):
    with_tenants = scenario(*(job(nth, nth / 4, tenant="tu"[nth % 2], priority=nth % 2) for nth in range(12)))
    without_tenants = scenario(*(job(nth, nth / 4, priority=nth % 2) for nth in range(12)))
    assert order(both(with_tenants)) == order(fast_engine.schedule_fast(without_tenants))


def test_fast_engine_refuses_too_many_types_or_lanes(subtests):
    lanes = [job(nth, type_=str(nth), exclusive="k") for nth in range(51)]
    wide = [worker("w", *map(str, range(101))), job(0, type_="1")]
    profiles = [*(worker(f"w{nth}", "pdf", str(nth)) for nth in range(101)), job(0)]
    for parts, message in [
        (lanes, "a key with more than 50 types, modes and priorities, which job 50 has"),
        (wide, "serve more than 100 types"),
        (profiles, "more than 100 sets of types"),
    ]:
        with subtests.test(message), pytest.raises(UnknownRuleError, match=message):
            fast_engine.schedule_fast(scenario(*parts))


def test_progress_is_advanced_for_each_job():
    steps = iter(range(10))
    fast_engine.schedule_fast(scenario(*(job(nth) for nth in range(4))), steps)
    assert next(steps) == 4


def test_fast_engine_is_100_times_faster_than_real_time():
    """The engine is about 10,000 times faster than real time: `python -m benchmarks.lab` measures it."""
    trace = make_unscheduled(5_000)
    began_s = time.perf_counter()
    fast_engine.schedule_fast(scenario_of(trace))
    assert (time.perf_counter() - began_s) * 100 < trace.length_us / S
