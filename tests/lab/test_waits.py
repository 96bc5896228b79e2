"""Reports of a schedule: waits, the use of slots, and gains of job groups."""

import pytest

from celery_affinity.lab import fast_engine, waits
from celery_affinity.lab.waits import SlotUse, Waits

from ..support.lab_scenarios import job, scenario, worker


def report(*parts, **fields):
    return waits.report_waits(fast_engine.schedule_fast(scenario(*parts, **fields)))


def test_wait_is_from_arrival_to_claim():
    assert report(job(0, took_s=3), job(1, 1)).all == Waits(2, 0, 1.0, 0.0, 2.0, 2.0)


def test_percentiles_use_the_nearest_rank():
    for count, share, rank in ((1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 2), (100, 0.95, 95), (21, 0.95, 20)):
        assert waits.percentile([*range(1, count + 1)], share) == rank, count


def test_unclaimed_job_is_counted_without_a_wait():
    assert report(job(0), job(1, type_="xls")).types == {"pdf": Waits(1, 0, 0.0, 0.0, 0.0, 0.0), "xls": Waits(0, 1)}


def test_waits_are_grouped_by_mode_and_tenant():
    found = report(job(0, tenant="t", on_demand=True), job(1, tenant="u"), job(2))
    assert {name: each.jobs for name, each in found.modes.items()} == {"on demand": 1, "queued": 2}
    assert {name: each.jobs for name, each in found.tenants.items()} == {"t": 1, "u": 1}


def test_slot_use_is_measured_while_jobs_arrive():
    fleet = [worker("a", slots=2), worker("b", "pdf", slots=2, joined_s=5), worker("c", "ocr", left_s=5)]
    found = report(*fleet, job(0, took_s=99), job(1, took_s=3), job(2, 10))
    assert found.slots == [SlotUse(("pdf",), 4, 13 / 30), SlotUse(("ocr",), 1, 0.0)]


def test_reused_worker_name_has_two_kinds_of_slots():
    fleet = [worker("w", left_s=4), worker("w", "xls", joined_s=5)]
    found = report(*fleet, job(0, took_s=2), job(1, 5, took_s=2, type_="xls"), job(2, 10, type_="xls"))
    assert found.slots == [SlotUse(("pdf",), 1, 0.5), SlotUse(("xls",), 1, 0.4)]


def between(before, after):
    return waits.gains_between(*(fast_engine.schedule_fast(scenario(*parts)) for parts in (before, after)))


def test_gains_are_sorted_from_largest_gain_to_largest_loss():
    jobs = [job(0, took_s=4), job(1, type_="xls"), job(2, tenant="t")]
    both, pdf = worker("w", "pdf", "xls"), worker("w", "pdf")
    found = between([both, *jobs], [pdf, worker("v", "xls"), *jobs])
    assert [(each.type, each.tenant, each.mean_s) for each in found] == [
        ("xls", None, 4.0),
        ("pdf", "t", 1.0),
        ("pdf", None, 0.0),
    ]
    found = between([pdf, worker("v", "xls"), *jobs], [both, *jobs])
    assert [(each.type, each.shorter, each.longer) for each in found] == [("pdf", 0, 0), ("pdf", 0, 1), ("xls", 0, 1)]


def test_job_that_no_longer_starts_waits_longer():
    (found,) = between([job(0)], [worker("w", "xls"), job(0)])
    assert (found.longer, found.shorter, found.after) == (1, 0, Waits(0, 1))
    (found,) = between([worker("w", "xls"), job(0)], [job(0)])
    assert (found.longer, found.shorter) == (0, 1)


def test_jobs_of_only_one_schedule_are_not_compared():
    (found,) = between([job(0)], [job(0), job(1)])
    assert (found.before.jobs, found.after.jobs) == (1, 1)


def test_difference_below_a_millisecond_is_ignored():
    (found,) = between([job(0, took_s=2), job(1)], [job(0, took_s=2.0005), job(1)])
    assert (found.longer, found.shorter) == (0, 0)
    assert found.mean_s == pytest.approx(-0.0005 / 2)
