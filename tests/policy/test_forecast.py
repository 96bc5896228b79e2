"""`policy.forecast`: list scheduling of jobs and blocks of jobs, as the scheduler claims them."""

import heapq
import random

import pytest

from celery_affinity.clock import SECOND_US as S
from celery_affinity.policy import forecast
from celery_affinity.policy.forecast import ComingJobs, FreeSlot, Kind, Situation, Wait, expected_starts
from celery_affinity.policy.score import Weights, score

NOW = 1_000 * S
PDF, EXCEL = Kind("pdf", 0, False), Kind("excel", 0, False)


def situation(waiting, slots, **options):
    free = [FreeSlot(NOW + round(free_s * S), frozenset(types.split())) for types, free_s in slots]
    fits = {type_: sum(type_ in slot.types for slot in free) for type_ in ("pdf", "excel")}
    return Situation(NOW, Weights(), fits, waiting, free, **options)


def job(name, rank_s, took_s=1.0):
    return Wait(NOW + round(rank_s * S), name, took_s * S)


def starts_s(of):
    return {name: (start.start_us - NOW) / S for name, start in expected_starts(of).items()}


def test_jobs_start_in_the_order_of_ranks_when_slots_become_free():
    waiting = {PDF: [job("third", -1), job("first", -9, 4), job("second", -5, 1)]}
    assert starts_s(situation(waiting, [("pdf", 2), ("pdf", 3)])) == {"first": 2, "second": 3, "third": 4}


def test_higher_priority_starts_before_lower_rank():
    urgent = Kind("pdf", 9, False)
    waiting = {PDF: [job("old", -100)], urgent: [job("urgent", -1)]}
    assert starts_s(situation(waiting, [("pdf", 1)])) == {"urgent": 1, "old": 2}


def test_oldest_job_starts_first_when_all_claims_are_by_age():
    waiting = {PDF: [job("old", -100)], Kind("pdf", 9, False): [job("urgent", -1)]}
    assert starts_s(situation(waiting, [("pdf", 1)], priority_percentage=0)) == {"old": 1, "urgent": 2}


def test_most_specialised_idle_slot_takes_an_arriving_job():
    coming = [ComingJobs(NOW + 5 * S, PDF, job("pdf", 5, 100)), ComingJobs(NOW + 6 * S, EXCEL, job("excel", 6, 1))]
    slots = [("excel pdf", 0), ("pdf", 0)]
    assert starts_s(situation({}, slots, coming=coming)) == {"pdf": 5, "excel": 6}


def test_job_of_a_type_without_slots_has_no_start():
    assert starts_s(situation({EXCEL: [job("excel", -1)], PDF: [job("pdf", -1)]}, [("pdf", 0)])) == {"pdf": 0}


def test_limit_of_a_type_keeps_a_second_job_waiting_until_the_first_ends():
    waiting = {PDF: [job("a", -3, 10), job("b", -2, 10)], EXCEL: [job("c", -1, 1)]}
    slots = [("excel pdf", 0), ("excel pdf", 0)]
    assert starts_s(situation(waiting, slots, limits={"pdf": 1})) == {"a": 0, "c": 0, "b": 10}


def test_reason_counts_the_jobs_and_the_work_that_start_before():
    block = Wait(NOW - 100 * S, "", 3.0 * S, 12, NOW - 50 * S)
    start = expected_starts(situation({PDF: [block, job("last", -1)]}, [("pdf", 0)] * 4))["last"]
    assert (start.start_us - NOW, start.jobs_before, start.work_us) == (9 * S, 12, 36 * S)


def test_arrived_job_counts_only_jobs_that_start_while_it_waits():
    block = Wait(NOW - 100 * S, "", 1.0 * S, 10, NOW - 50 * S)
    coming = [ComingJobs(NOW + round(4.5 * S), PDF, job("late", 4.5))]
    start = expected_starts(situation({PDF: [block]}, [("pdf", 0)], coming=coming))["late"]
    assert (start.start_us - NOW, start.jobs_before) == (10 * S, 5)


def each_job_alone(waiting, slots):
    """Schedule with the score of the scheduler, job by job."""
    free = [(free_s * S + NOW, len(types.split()), nth, types.split()) for nth, (types, free_s) in enumerate(slots)]
    heapq.heapify(free)
    lanes = {kind: sorted(waits) for kind, waits in waiting.items()}
    fits = {type_: sum(type_ in types.split() for types, _ in slots) for type_ in ("pdf", "excel")}
    starts = {}
    while any(lanes.values()) and free:
        at_us, size, nth, types = heapq.heappop(free)
        able = [kind for kind, waits in lanes.items() if waits and kind.type in types]
        if not able:
            continue

        def order(kind, at_us=at_us):
            rank_us = lanes[kind][0].rank_us
            total = score(kind.priority, kind.on_demand, at_us - rank_us, fits[kind.type], Weights()).total
            return -total, rank_us

        taken = lanes[min(able, key=order)].pop(0)
        starts[taken.job_id] = (at_us - NOW) / S
        heapq.heappush(free, (at_us + taken.each_us, size, nth, types))
    return starts


@pytest.mark.parametrize("seed", range(20))
def test_forecast_is_the_schedule_of_the_scheduler(seed):
    rng = random.Random(seed)
    kinds = [Kind(rng.choice(["pdf", "excel"]), rng.randrange(4), rng.random() < 0.3) for _ in range(4)]
    waiting = {kind: [] for kind in kinds}
    for number in range(60):
        wait = job(f"job-{number}", -rng.randrange(1, 400_000) / 1_000, rng.randrange(1_000, 30_000) / 1_000)
        waiting[rng.choice(kinds)].append(wait)
    slots = [(rng.choice(["pdf", "excel", "excel pdf"]), rng.randrange(0, 9_000) / 1_000) for _ in range(5)]
    assert starts_s(situation(waiting, slots)) == pytest.approx(each_job_alone(waiting, slots), abs=1e-4)


def test_blocks_of_a_million_jobs_are_forecast_within_two_percent_in_few_steps(monkeypatch):
    choices = []
    choose = forecast._ListSchedule._choose
    monkeypatch.setattr(forecast._ListSchedule, "_choose", lambda self: choices.append(1) or choose(self))
    lane = [Wait(NOW - (2_000 - 100 * n) * S, "", 2.0 * S, 62_500, NOW - (1_900 - 100 * n) * S) for n in range(16)]
    found = starts_s(situation({PDF: [*lane, job("last", -1)]}, [("pdf", n / 20) for n in range(40)]))
    assert found["last"] == pytest.approx(50_000, rel=0.02)
    assert len(choices) < 5_000


def test_large_fleet_is_grouped_and_forecast_within_five_percent():
    block = Wait(NOW - 100 * S, "", 2.0 * S, 20_000, NOW - 50 * S)
    found = starts_s(situation({PDF: [block, job("last", -1)]}, [("pdf", n / 500) for n in range(1_000)]))
    assert found["last"] == pytest.approx(41, rel=0.05)


def test_grouped_slots_keep_the_number_of_slots_of_a_profile_and_the_limit_of_a_type():
    excel = [Wait(NOW - (40 - n) * S, f"excel-{n}", 1.0 * S) for n in range(20)]
    pdf = [Wait(NOW - (40 - n) * S, f"pdf-{n}", 1.0 * S) for n in range(20)]
    slots = [("pdf", 0)] * 1_000 + [("excel", 0)]
    found = starts_s(situation({EXCEL: excel, PDF: pdf}, slots, limits={"pdf": 2}))
    assert (found["excel-19"], found["pdf-19"]) == (19, pytest.approx(9, abs=0.5))
