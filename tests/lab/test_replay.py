"""The replay of a record: its fidelity, and the first different claim."""

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


@pytest.mark.parametrize("engine", ["twin", "judge"])
def test_exact_record_is_replayed_claim_by_claim(made, engine):
    found = replay(made) if engine == "twin" else replay(made, engine)
    assert (found.engine, found.claims, found.kept, found.fidelity) == (engine, 400, 400, 1.0)
    assert found.first_difference is None
    assert found.recorded == found.replayed
    assert found.beyond_bound == 0


def test_rule_of_the_exact_engine_selects_it():
    keyed = trace(*(traced(claimed_s=nth, ended_s=nth + 1, exclusive="k", merge=str(nth)) for nth in range(2)))
    assert (replay(keyed).engine, replay(keyed).fidelity) == ("judge", 1.0)
    with pytest.raises(UnknownRuleError, match="merging, which job 0 has"):
        replay(keyed, "twin")


def test_recorded_claims_are_in_fencing_token_order():
    jobs = [traced(claimed_s=2, fence=3), traced(claimed_s=2, fence=2), traced(claimed_s=1, fence=1), traced()]
    found = trace(*jobs)
    assert order(recorded_jobs(found, scenario_of(found))) == [2, 1, 0]
    unfenced = trace(*(replace(each, fence=None) for each in jobs))
    assert order(recorded_jobs(unfenced, scenario_of(unfenced))) == [2, 0, 1]


def test_first_different_claim_is_explained_by_both_scores():
    jobs = [
        traced(claimed_s=0, ended_s=5),
        traced(since_s=1, claimed_s=5, ended_s=6),
        traced(since_s=2, priority=8, claimed_s=6, ended_s=7),
    ]
    found = replay(trace(*jobs))
    assert (found.claims, found.kept) == (3, 2)
    difference = found.first_difference
    assert (difference.types, difference.nth, difference.at_s, difference.worker) == (("pdf",), 1, 5.0, "w")
    assert (difference.replayed.number, difference.replayed.state, difference.replayed.waited_s) == (2, "chosen", 3.0)
    assert (difference.recorded.number, difference.recorded.state, difference.recorded.waited_s) == (1, "waiting", 4.0)
    assert difference.replayed.score == 8 * 1024 + 3 * 16 + 500
    assert (
        difference.recorded.score
        == 5 * 1024 + 4 * 16 + 500
        == difference.recorded.of_priority + difference.recorded.of_age + 500
    )


def test_job_recorded_before_its_arrival_is_explained():
    fleet = [worker("w"), worker("v", "pdf", "xls")]
    jobs = [traced(claimed_s=0, ended_s=5, worker="v"), traced(since_s=2, claimed_s=2, ended_s=3, worker="w")]
    difference = replay(trace(*jobs, workers=tuple(fleet))).first_difference
    assert (difference.types, difference.replayed.number, difference.recorded.number) == (("pdf",), 0, 1)
    assert (difference.recorded.state, difference.recorded.score) == ("not here yet", None)


def test_job_claimed_before_is_explained():
    made = fast_engine.schedule_fast(scenario(job(0, took_s=5), job(1, 1), job(2, 2)))
    found = advise.candidate_at(made, 1, 6 * S, is_chosen=False)
    assert (found.state, found.score, found.waited_s) == ("claimed before", None, 5.0)
    assert advise.candidate_at(made, 2, 5 * S, is_chosen=False).state == "waiting"


def test_claim_of_only_one_schedule_has_no_counterpart():
    late = worker("w", left_s=4)
    jobs = [traced(claimed_s=0, ended_s=5), traced(since_s=1, claimed_s=5, ended_s=6)]
    difference = replay(trace(*jobs, workers=(late,))).first_difference
    assert (difference.nth, difference.replayed, difference.recorded.number) == (1, None, 1)
    more = replay(trace(traced(claimed_s=0, ended_s=5), traced(since_s=1))).first_difference
    assert (more.replayed.number, more.recorded) == (1, None)


def overloaded(*, jobs=30, **fields):
    """Return a record of 10 s in which one slot ran ten jobs of 1 s each; the tenth was still running."""
    ran = [traced(since_s=nth / 100, claimed_s=nth, ended_s=nth + 1, outcome="done") for nth in range(9)]
    runs = traced(since_s=0.09, claimed_s=9, outcome="running")
    waits = [traced(since_s=nth / 100) for nth in range(10, jobs)]
    return replace(trace(*ran, runs, *waits, **fields), length_us=10 * S)


def test_jobs_waiting_at_the_records_end_have_no_wait():
    found = replay(overloaded())
    assert found.recorded.all == found.replayed.all
    assert (found.recorded.all.jobs, found.recorded.all.unclaimed, found.recorded.all.max_s) == (10, 20, 8.91)
    assert (found.still_waiting, found.still_waiting_replayed) == (20, 20)
    assert found.first_difference is None
    assert (found.fidelity, found.beyond_bound) == (1.0, 0)


def test_job_replayed_after_the_records_end_counts_its_wait():
    late = [traced(claimed_s=1, ended_s=6), traced(since_s=1, claimed_s=2, ended_s=3), traced(since_s=2)]
    found = replay(replace(trace(*late), length_us=4 * S))
    assert (found.recorded.all.max_s, found.replayed.all.max_s) == (1.0, 4.0)
    assert (found.recorded.all.jobs, found.replayed.all.jobs) == (2, 2)
    assert (found.still_waiting, found.still_waiting_replayed) == (1, 2)


def test_record_without_claims_has_replayed_waits():
    found = replay(trace(*(traced() for _ in range(3))))
    assert (found.recorded.all.jobs, found.replayed.all.jobs) == (0, 3)
    assert replay(trace(traced("xls"))).fidelity == 1.0


def test_preempted_job_is_replayed_with_a_row_per_claim():
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
        ([1, 2, 3, 0], "aaaa", 3),  # a late job is one different claim
        ([3, 2, 1, 0], "aaaa", 1),
        ([0, 1, 2, 3], "abaa", 3),
        ([0, 1, 2], "aaa", 3),
        ([4, 5, 6], "aaa", 0),
        ([], "", 0),
    ],
)
def test_fidelity_counts_claims_in_order_on_recorded_types(numbers, workers, kept):
    assert compare_with_record(schedule([0, 1, 2, 3], "aaaa"), schedule(numbers, workers)).kept == kept


def test_claims_of_different_worker_types_are_unordered():
    assert compare_with_record(schedule([0, 1, 2, 3], "abab"), schedule([1, 0, 3, 2], "baba")).share == 1.0


def test_reused_worker_name_has_the_types_of_its_time():
    fleet = [worker("w", left_s=5), worker("w", "xls", joined_s=6)]
    jobs = [traced(claimed_s=0, ended_s=1), traced("xls", since_s=7, claimed_s=7, ended_s=8)]
    assert replay(trace(*jobs, workers=tuple(fleet))).fidelity == 1.0
