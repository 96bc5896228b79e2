"""How long a job had its slot, as far as the times of workers and the order of the server's claims tell."""

from celery_affinity.lab.scenario import slot_time_us
from celery_affinity.lab.trace import Trace

from ..support.lab_scenarios import S, traced, worker

MS = 1_000


def held(*jobs, slots=1):
    """Return how long each job had its slot, ms."""
    found = slot_time_us(Trace(100 * S, (worker("w", slots=slots),), jobs))
    return [found[nth] / MS for nth in sorted(found)]


def test_a_job_has_its_slot_from_its_claim_to_its_end():
    assert held(traced(since_s=1, claimed_s=2, ended_s=5, started_us=3 * S)) == [3000]


def test_a_job_that_found_a_free_slot_had_it_as_it_came():
    assert held(traced(since_s=1, claimed_s=1.002, ended_s=2)) == [1000]


def test_the_worker_s_word_of_an_end_takes_until_the_next_claim():
    jobs = [traced(since_s=1, claimed_s=1, ended_s=2), traced(since_s=1.5, claimed_s=2.004, ended_s=3)]
    assert held(*jobs) == [1004, 996]


def test_a_slot_is_held_until_the_worker_knows_that_it_is_free():
    jobs = [
        traced(since_s=1, claimed_s=1, ended_s=2, freed_us=2_008_000),
        traced(since_s=1.5, claimed_s=2.01, ended_s=3, freed_us=3_001_000),
        traced(since_s=1.5, claimed_s=3.1, ended_s=4, freed_us=4_002_000),
    ]
    assert held(*jobs) == [1010, 991, 902]


def test_an_answer_that_came_just_after_its_job_is_the_one_that_brought_the_job():
    jobs = [
        traced(since_s=1, claimed_s=1, ended_s=2, freed_us=2_008_500),
        traced(since_s=1.5, claimed_s=2.008, ended_s=3, freed_us=3_000_000),
    ]
    assert held(*jobs) == [1008, 992]


def test_a_job_that_came_just_after_a_slot_was_free_did_not_make_the_job_before_longer():
    jobs = [
        traced(since_s=1, claimed_s=1, ended_s=2, freed_us=2_001_000),
        traced(since_s=2.0017, claimed_s=2.0017, ended_s=3, freed_us=3_000_000),
    ]
    assert held(*jobs) == [1001, 998.3]


def test_a_job_that_came_to_a_free_slot_and_was_claimed_later_by_the_server_s_clock_was_kept_back():
    assert held(traced(since_s=1, claimed_s=1.1, ended_s=2, freed_us=2_001_000)) == [901]


def test_a_later_claim_was_kept_back_by_something_else():
    jobs = [traced(since_s=1, claimed_s=1, ended_s=2), traced(since_s=1.5, claimed_s=2.5, ended_s=3)]
    assert held(*jobs) == [1000, 500]


def test_a_claim_that_was_counted_before_another_was_earlier():
    jobs = [
        traced(since_s=0, claimed_s=1, ended_s=3, fence=1),
        traced(since_s=0, claimed_s=0.9, ended_s=2, fence=2),
    ]
    assert held(*jobs, slots=2) == [2100.001, 1100]


def test_a_job_that_was_claimed_ahead_has_its_slot_when_that_is_free():
    jobs = [traced(since_s=0, claimed_s=1, ended_s=3), traced(since_s=0, claimed_s=2, ended_s=4)]
    assert held(*jobs) == [2000, 1000]


def test_each_of_several_slots_has_its_own_jobs():
    jobs = [
        traced(since_s=0, claimed_s=0, ended_s=4),
        traced(since_s=0, claimed_s=0, ended_s=2),
        traced(since_s=1, claimed_s=2.002, ended_s=5),
        traced(since_s=1, claimed_s=4.002, ended_s=5),
    ]
    assert held(*jobs, slots=2) == [4002, 2002, 2998, 998]


def test_what_was_before_the_trace_does_not_count_and_what_has_no_end_is_not_known():
    assert held(traced(since_s=-9, claimed_s=-4, ended_s=5), traced(since_s=1, claimed_s=6), traced()) == [5000.001]
