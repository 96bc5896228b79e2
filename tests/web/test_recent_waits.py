"""Waits of the last minutes, computed from growing counters."""

from celery_affinity.reports.type_metrics import TypeMetrics
from celery_affinity.schema.histograms import histogram_of
from celery_affinity.web.page.news import RecentWaits


def pdf(waited=0, long=0, ran=0):
    waits = histogram_of({"queued 03": str(waited), "queued 12": str(long)}, "queued")
    return TypeMetrics("pdf", queued=waits, runs=histogram_of({"done 08": str(ran)}, "done"))


def test_only_waits_since_the_first_sample_count():
    waits = RecentWaits(900)
    assert waits.add(0, [pdf(100, 5, 90)]) == {"seconds": 0, "rows": []}
    found = waits.add(20, [pdf(108, 7, 93)])
    assert found["seconds"] == 20
    run, queued = found["rows"]
    assert (run["what"], run["jobs"]) == ("run", 3)
    assert (queued["what"], queued["jobs"]) == ("queued", 10)
    assert queued["p50_s"] < 0.04
    assert 8 < queued["p95_s"] <= 16


def test_old_samples_are_dropped_and_counters_may_restart():
    waits = RecentWaits(100)
    for number in range(30):
        waits.add(number * 10, [pdf(number)])
    found = waits.add(300, [pdf(30)])
    assert found["seconds"] == 100
    assert found["rows"][0]["jobs"] == 10
    assert waits.add(310, [pdf(4)])["rows"][0]["jobs"] == 4


def test_later_type_is_counted_from_its_first_sample():
    waits = RecentWaits(900)
    waits.add(0, [])
    assert waits.add(20, [pdf(3)])["rows"][0]["jobs"] == 3
