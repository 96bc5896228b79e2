"""A replay of a record: its fidelity, and why the first claim differs."""

from dataclasses import replace

import pytest

from celery_affinity.lab import advise, fast_engine
from celery_affinity.lab.changes import Changes
from celery_affinity.lab.fast_engine import UnknownRuleError
from celery_affinity.lab.replay import compare_with_record, recorded_jobs, replay, schedule_both
from celery_affinity.lab.scenario import Schedule, ScheduledRun, scenario_of
from celery_affinity.lab.trace import Trace
from examples.made_up_trace import make_trace

from ..support.lab_scenarios import S, job, order, scenario, traced, worker


@pytest.fixture(scope="module")
def made():
    return make_trace(400)


def trace(*jobs, workers=(), **fields):
    return Trace(100 * S, workers or (worker("w"),), jobs, **fields)


def test_a_record_of_exact_times_is_made_again_claim_by_claim(made):
    found = replay(made)
    assert (found.engine, found.claims, found.kept, found.fidelity) == ("twin", 400, 400, 1.0)
    assert found.first_difference is None
    assert found.recorded == found.replayed
    assert found.beyond_bound == 0


def test_the_judge_makes_the_same_claims_again(made):
    found = replay(made, "judge")
    assert (found.engine, found.fidelity) == ("judge", 1.0)


def test_a_rule_that_the_twin_does_not_know_is_the_judge_s():
    keyed = trace(*(traced(claimed_s=nth, ended_s=nth + 1, exclusive="k", merge=str(nth)) for nth in range(2)))
    assert (replay(keyed).engine, replay(keyed).fidelity) == ("judge", 1.0)
    with pytest.raises(UnknownRuleError, match="merging, which job 0 has"):
        replay(keyed, "twin")


def test_recorded_claims_are_in_the_order_of_their_fences():
    jobs = [traced(claimed_s=2, fence=3), traced(claimed_s=2, fence=2), traced(claimed_s=1, fence=1), traced()]
    found = trace(*jobs)
    assert order(recorded_jobs(found, scenario_of(found))) == [2, 1, 0]
    unfenced = trace(*(replace(each, fence=None) for each in jobs))
    assert order(recorded_jobs(unfenced, scenario_of(unfenced))) == [2, 0, 1]


def test_the_first_claim_that_differs_is_explained_by_the_scores_of_both():
    jobs = [
        traced(claimed_s=0, ended_s=5),
        traced(since_s=1, claimed_s=5, ended_s=6),
        traced(since_s=2, priority=8, claimed_s=6, ended_s=7),
    ]
    found = replay(trace(*jobs))
    assert (found.claims, found.kept) == (3, 2)
    why = found.first_difference
    assert (why.types, why.nth, why.at_s, why.worker) == (("pdf",), 1, 5.0, "w")
    assert (why.replayed.number, why.replayed.state, why.replayed.waited_s) == (2, "chosen", 3.0)
    assert (why.recorded.number, why.recorded.state, why.recorded.waited_s) == (1, "waiting", 4.0)
    assert why.replayed.score == 8 * 1024 + 3 * 16 + 500
    assert why.recorded.score == 5 * 1024 + 4 * 16 + 500 == why.recorded.of_priority + why.recorded.of_age + 500


def test_a_job_that_could_not_have_been_claimed_says_so():
    fleet = [worker("w"), worker("v", "pdf", "xls")]
    jobs = [traced(claimed_s=0, ended_s=5, worker="v"), traced(since_s=2, claimed_s=2, ended_s=3, worker="w")]
    why = replay(trace(*jobs, workers=tuple(fleet))).first_difference
    assert (why.types, why.replayed.number, why.recorded.number) == (("pdf",), 0, 1)
    assert (why.recorded.state, why.recorded.score) == ("not here yet", None)


def test_a_job_that_had_been_claimed_before_says_so():
    made = fast_engine.schedule_fast(scenario(job(0, took_s=5), job(1, 1), job(2, 2)))
    found = advise.candidate_at(made, 1, 6 * S, is_chosen=False)
    assert (found.state, found.score, found.waited_s) == ("claimed before", None, 5.0)
    assert advise.candidate_at(made, 2, 5 * S, is_chosen=False).state == "waiting"


def test_a_claim_that_only_one_of_them_has_stands_alone():
    late = worker("w", left_s=4)
    jobs = [traced(claimed_s=0, ended_s=5), traced(since_s=1, claimed_s=5, ended_s=6)]
    why = replay(trace(*jobs, workers=(late,))).first_difference
    assert (why.nth, why.replayed, why.recorded.number) == (1, None, 1)
    more = replay(trace(traced(claimed_s=0, ended_s=5), traced(since_s=1))).first_difference
    assert (more.replayed.number, more.recorded) == (1, None)


def overloaded(*, jobs=30, **fields):
    """Return a record of 10 s in which a slot ran ten of the jobs, of a second each: the tenth was not over then."""
    ran = [traced(since_s=nth / 100, claimed_s=nth, ended_s=nth + 1, outcome="done") for nth in range(9)]
    runs = traced(since_s=0.09, claimed_s=9, outcome="running")
    waits = [traced(since_s=nth / 100) for nth in range(10, jobs)]
    return replace(trace(*ran, runs, *waits, **fields), length_us=10 * S)


def test_jobs_that_waited_as_the_record_ended_have_a_wait_on_neither_side():
    found = replay(overloaded())
    assert found.recorded.all == found.replayed.all
    assert (found.recorded.all.jobs, found.recorded.all.unclaimed, found.recorded.all.max_s) == (10, 20, 8.91)
    assert (found.still_waiting, found.still_waiting_replayed) == (20, 20)
    assert found.first_difference is None
    assert (found.fidelity, found.beyond_bound) == (1.0, 0)


def test_a_job_that_the_replay_claims_after_the_end_of_the_record_counts_with_its_wait():
    late = [traced(claimed_s=1, ended_s=6), traced(since_s=1, claimed_s=2, ended_s=3), traced(since_s=2)]
    found = replay(replace(trace(*late), length_us=4 * S))
    assert (found.recorded.all.max_s, found.replayed.all.max_s) == (1.0, 4.0)
    assert (found.recorded.all.jobs, found.replayed.all.jobs) == (2, 2)
    assert (found.still_waiting, found.still_waiting_replayed) == (1, 2)


def test_a_record_without_claims_is_replayed_with_the_waits_of_all_jobs():
    found = replay(trace(*(traced() for _ in range(3))))
    assert (found.recorded.all.jobs, found.replayed.all.jobs) == (0, 3)


def test_a_job_that_was_stopped_for_another_tenant_has_a_row_for_each_part_of_its_life():
    jobs = [
        traced(tenant="batch", claimed_s=0, ended_s=30, outcome="returned"),
        traced(tenant="acme", since_s=5, claimed_s=30, ended_s=35),
        traced(tenant="batch", since_s=30, enqueued_s=0, claimed_s=35, ended_s=60),
    ]
    found = trace(*jobs, settings={"tenants": "acme=max:1,min:1"})
    replayed = replay(found)
    assert (replayed.engine, replayed.fidelity, replayed.recorded) == ("judge", 1.0, replayed.replayed)
    before, after, _ = schedule_both(scenario_of(found), Changes(add=((("pdf",), 1),)))
    assert [run.claimed_us // S for run in before.runs] == [0, 30, 35]
    assert [(run.claimed_us // S, run.ended_us // S) for run in after.runs] == [(0, 30), (5, 10), (30, 55)]


def schedule(numbers, workers):
    runs = tuple(
        ScheduledRun(number, worker, place, place)
        for place, (number, worker) in enumerate(zip(numbers, workers, strict=True))
    )
    fleet = [worker("a"), worker("b", "pdf", "xls"), worker("c")]
    return Schedule(scenario(*fleet, *map(job, range(9))), runs)


@pytest.mark.parametrize(
    ("numbers", "workers", "kept"),
    [
        ([0, 1, 2, 3], "aaaa", 4),
        ([0, 1, 2, 3], "acca", 4),  # workers of the same types
        ([1, 2, 3, 0], "aaaa", 3),  # one that comes late is one claim
        ([3, 2, 1, 0], "aaaa", 1),
        ([0, 1, 2, 3], "abaa", 3),
        ([0, 1, 2], "aaa", 3),
        ([4, 5, 6], "aaa", 0),
        ([], "", 0),
    ],
)
def test_fidelity_counts_claims_in_the_recorded_order_on_the_recorded_types(numbers, workers, kept):
    assert compare_with_record(schedule([0, 1, 2, 3], "aaaa"), schedule(numbers, workers)).kept == kept


def test_claims_of_different_types_of_workers_have_no_order():
    assert compare_with_record(schedule([0, 1, 2, 3], "abab"), schedule([1, 0, 3, 2], "baba")).share == 1.0


def test_a_name_that_came_back_with_other_types_has_the_types_of_its_time():
    fleet = [worker("w", left_s=5), worker("w", "xls", joined_s=6)]
    jobs = [traced(claimed_s=0, ended_s=1), traced("xls", since_s=7, claimed_s=7, ended_s=8)]
    assert replay(trace(*jobs, workers=tuple(fleet))).fidelity == 1.0


def test_no_claims_are_made_again_in_full():
    assert replay(trace(traced("xls"))).fidelity == 1.0
