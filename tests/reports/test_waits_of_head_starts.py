"""Waits in reports count from the true enqueue time, although a head start orders a job earlier."""

import pytest

from celery_affinity.clock import SECOND_US
from celery_affinity.reports.keys import read_keys
from celery_affinity.reports.metrics import read_metrics
from celery_affinity.reports.queue_order import next_jobs
from celery_affinity.reports.status import Report
from celery_affinity.schema.keys import Keys

from ..support.asking import why

#: A head start of 246 s.
URGENT = "w10000000"


def oldest_waits_s(reader):
    return {row.type: row.oldest_wait_s for row in Report(reader).status().types}


def test_oldest_wait_is_of_the_job_behind_urgent_ones(fleet, reader):
    fleet.publish("old", "pdf")
    fleet.scheduler.advance(30)
    for number in range(3):
        fleet.publish(f"urgent-{number}", "pdf", due=URGENT)
    fleet.scheduler.advance(2)
    assert reader.lanes()[0].job_id == "urgent-0"
    assert oldest_waits_s(reader) == {"pdf": 32}
    assert {row.type: row.oldest_wait_s for row in read_metrics(reader).types} == {"pdf": 32}


def test_oldest_wait_is_of_another_lane_than_that_of_the_urgent_job(fleet, reader):
    fleet.publish("old", "pdf", priority=5)
    fleet.scheduler.advance(30)
    fleet.publish("urgent", "pdf", due=URGENT)
    fleet.publish("excel", "excel", due=URGENT)
    assert oldest_waits_s(reader) == {"excel": 0, "pdf": 30}


def test_at_most_ten_urgent_jobs_are_read_per_lane(fleet, reader, monkeypatch):
    fleet.publish("old", "pdf")
    fleet.scheduler.advance(30)
    for number in range(11):
        fleet.publish(f"urgent-{number}", "pdf", due=URGENT)
    read = []
    fields_of_jobs = reader.fields_of_jobs
    monkeypatch.setattr(reader, "fields_of_jobs", lambda ids, fields: read.extend(ids) or fields_of_jobs(ids, fields))
    assert oldest_waits_s(reader)["pdf"] == pytest.approx(0, abs=0.1)
    assert len(read) <= 11


def test_oldest_wait_of_a_key_and_of_a_tenant_is_true(fleet, reader):
    rules = {"city%3AHH": ("!", "limit=0"), "tenant%3Abig": ("$", "quota=settings")}
    fleet.scheduler.configure({"tenants": "big=max:0"})
    for key, (mark, limit) in rules.items():
        fleet.publish(f"old{mark}", "pdf", rules=f"key={key} {limit}".replace("limit=0", "limit=1"))
    fleet.scheduler.advance(30)
    for key, (mark, limit) in rules.items():
        fleet.publish(f"urgent{mark}", "pdf", rules=f"key={key} {limit}".replace("limit=0", "limit=1"), due=URGENT)
    found = {key.key: key.oldest_wait_s for key in read_keys(reader, [*rules], reader.now_us())}
    assert found == {"city:HH": 30, "tenant:big": 30}


def test_pending_and_explain_show_the_true_wait_in_the_order_of_ranks(fleet, reader):
    fleet.publish("old", "pdf")
    fleet.scheduler.advance(30)
    fleet.publish("urgent", "pdf", due=URGENT)
    fleet.scheduler.advance(2)
    assert [(job.job_id, job.waited_s) for job in next_jobs(reader, None, 9)] == [("urgent", 2), ("old", 32)]
    found = why(reader, "urgent")
    assert found.since_s == reader.now_us() / SECOND_US - 2
    assert found.waiting.rank == 1
    assert found.waiting.score.age == pytest.approx((2 + 246) * 16)


def test_damaged_head_start_does_not_break_the_status(fleet, reader):
    fleet.publish("job", "pdf", due=URGENT)
    for value in ("", "-1", "x", "9" * 30):
        fleet.scheduler.client.hset(Keys().key("job", "job"), "head", value)
        assert oldest_waits_s(reader)["pdf"] is not None
