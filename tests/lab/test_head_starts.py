"""Head starts in the fast engine: the rule, run times learned from ended jobs only, and the order within a lane."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from celery_affinity.lab import fast_engine
from celery_affinity.lab.changes import Changes, apply_changes
from celery_affinity.lab.head_starts import HeadStarts
from celery_affinity.lab.scenario import scenario_of
from celery_affinity.lab.trace import FAILED, Trace
from celery_affinity.policy.run_times import RunTime

from ..support.lab_scenarios import S, job, order, scenario, traced, worker

STRETCH = {"stretch": "10", "target_wait_us": str(100 * S)}


def schedule(*parts, **settings):
    return fast_engine.schedule_fast(scenario(*parts, settings={"target_wait_us": str(100 * S), **settings}))


def heads_s(*parts, **settings):
    return {number: us / S for number, us in schedule(*parts, **settings).head_starts.items()}


def test_head_start_is_the_target_wait_minus_the_time_until_the_job_is_due():
    assert heads_s(job(0, start_within_us=30 * S)) == {0: 70}
    assert heads_s(job(0, start_within_us=0), job(1, start_within_us=100 * S), job(2)) == {0: 100}
    assert heads_s(job(0, deadline_us=-5 * S), job(1, deadline_us=40 * S)) == {0: 100, 1: 60}
    assert heads_s(job(0, deadline_us=40 * S, start_within_us=30 * S)) == {0: 70}
    assert heads_s(job(0, start_within_us=30 * S), target_wait_us="0") == {}


def test_recorded_head_start_counts_until_target_wait_or_stretch_changes():
    recorded = scenario(job(0, start_within_us=30 * S, head_us=5 * S), settings=STRETCH)
    assert fast_engine.schedule_fast(recorded).head_starts == {0: 5 * S}
    for settings, head_s in [({"age_weight": "1"}, 5), ({"stretch": "1"}, 70), ({"target_wait_us": str(40 * S)}, 10)]:
        changed = apply_changes(recorded, Changes(settings=settings))
        assert fast_engine.schedule_fast(changed).head_starts == {0: head_s * S}


def test_stretch_uses_only_run_times_of_jobs_that_have_ended():
    jobs = [job(0, 0, 2, task="a"), job(1, 1, 2, task="a"), job(2, 3, 2, task="a"), job(3, 3, 2, task="b")]
    assert heads_s(worker("w", slots=4), *jobs, **STRETCH) == {2: 80, 3: 80}
    other_type = [*jobs[:1], job(1, 3, type_="xls", task="b")]
    assert heads_s(worker("w", "pdf", "xls", slots=4), *other_type, **STRETCH) == {}


def test_deadline_leaves_time_for_the_run_and_its_typical_error():
    jobs = [job(nth, nth, took, task="a") for nth, took in enumerate((0.5, 0.7))]
    learned = RunTime()
    for each in jobs:
        learned.add(None, each.took_us)
    early_us = learned.expected_us() * (1 + learned.typical_error)
    (head_us,) = schedule(*jobs, job(2, 5, deadline_us=60 * S, task="a")).head_starts.values()
    assert abs(head_us - (40 * S + early_us)) < 2


def test_failed_runs_are_not_learned():
    jobs = [
        traced(claimed_s=0, ended_s=1, task="a"),
        traced(since_s=1, claimed_s=1, ended_s=9, task="a", outcome=FAILED),
    ]
    made = scenario_of(Trace(9 * S, (worker("w"),), tuple(jobs), STRETCH))
    starts = HeadStarts(made)
    for arrival in made.arrivals:
        starts.learn(arrival)
    assert starts.expected(made.arrivals[0])[0] == 1 * S


def test_size_orders_jobs_of_a_task():
    first = [job(nth, 20 * nth, 1 + nth, task="a", size=1 + nth) for nth in range(12)]
    waiting = [
        job(20, 400, 50, task="a", size=50),
        job(21, 401, 9, task="a", size=9),
        job(22, 402, 3, task="a", size=3),
    ]
    assert order(schedule(*first, *waiting, stretch="3"))[-2:] == [22, 21]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 100)), min_size=1, max_size=25, unique=True),
    st.integers(1, 3),
)
def test_jobs_of_a_lane_due_within_the_target_wait_start_in_the_order_of_their_due_times(pairs, slots):
    jobs = [job(n, at, 7, start_within_us=within * S) for n, (at, within) in enumerate(pairs)]
    made = schedule(worker("w", slots=slots), *jobs)
    by_number = {each.number: each for each in jobs}
    claimed_us = {run.number: run.claimed_us for run in made.runs}

    def due(each):
        return each.since_us + each.start_within_us, each.number

    for run in made.runs:
        claimed = by_number[run.number]
        waiting = [each for each in jobs if each.since_us < run.claimed_us < claimed_us[each.number]]
        assert all(due(claimed) < due(each) for each in waiting)


def test_job_without_a_due_time_is_passed_by_those_due_earlier_than_it_would_be():
    jobs = [job(0, took_s=10), job(1, 1), job(2, 2, start_within_us=98 * S), job(3, 3, start_within_us=99 * S)]
    assert order(schedule(*jobs)) == [0, 2, 1, 3]
    assert order(schedule(*(replace(each, start_within_us=None) for each in jobs))) == [0, 1, 2, 3]
