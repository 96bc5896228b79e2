"""The tenants in `status`, in metrics and in JSON: who has a quota of its own, and who has the most waiting jobs."""

import json
import re

import pytest
from click import unstyle

from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.json import as_json
from celery_affinity.reports.metrics import metrics_text, read_metrics
from celery_affinity.reports.queue_order import next_jobs
from celery_affinity.reports.status import Report
from celery_affinity.reports.tenants import MAX_OTHERS, tenants_status


def publish(fleet, tenant, jobs, type_="pdf"):
    for number in range(jobs):
        fleet.publish(f"{tenant}-{type_}-{number}$", type_, rules=f"key=tenant%3A{tenant} quota=settings")


@pytest.fixture
def shared_fleet(fleet):
    """A worker with three slots: two of a tenant at its maximum, one of others; a tenant that is promised a slot."""
    fleet.scheduler.configure({"tenants": "full=max:2 poor=max:none,min:1,weight:3 quiet=max:7 *=max:9"})
    fleet.join("worker", "pdf", slots=3)
    publish(fleet, "full", 4)
    publish(fleet, "many", 8)
    fleet.scheduler.advance(2)
    publish(fleet, "poor", 1)
    publish(fleet, "poor", 1, "excel")
    return fleet


def test_each_has_its_quota_slots_and_waiting_jobs_and_the_most_waiting_come_first(shared_fleet, reader):
    found = tenants_status(reader, reader.now_us())
    assert [(each.name, each.held, each.waiting, each.minimum, each.limit, each.weight) for each in found] == [
        ("many", 1, 7, 0, 9, 1),
        ("full", 2, 2, 0, 2, 1),
        ("poor", 0, 2, 1, None, 3),
        ("quiet", 0, 0, 0, 7, 1),
    ]
    assert [each.name for each in found if each.is_named] == ["full", "poor", "quiet"]
    assert [each.name for each in found if each.is_below_minimum] == ["poor"]
    assert [each.name for each in found if each.is_at_maximum] == ["full"]
    assert [each.oldest_wait_s for each in found] == [2.0, 2.0, 0.0, None]


def test_of_very_many_tenants_those_with_the_most_waiting_jobs_are_shown(fleet, reader):
    for number in range(MAX_OTHERS + 30):
        publish(fleet, f"t{number}", 1 + number % 4)
    found = tenants_status(reader, reader.now_us())
    assert len(found) == MAX_OTHERS
    assert {each.waiting for each in found} == {4, 3}


def test_a_fleet_without_tenants_has_none_at_the_cost_of_two_commands(fleet, reader):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    assert tenants_status(reader, reader.now_us()) == []
    assert "tenant" not in status_text(Report(reader).status())


def test_status_has_a_table_of_them(shared_fleet, reader):
    lines = [line.split() for line in unstyle(status_text(Report(reader).status())).splitlines()]
    assert ["tenant", "slots", "min", "max", "weight", "waiting", "oldest", "wait"] in lines
    assert ["full", "2", "-", "2", "1", "2", "2.0", "s", "at", "its", "maximum"] in lines
    (poor,) = [line for line in lines if line[:1] == ["poor"]]
    assert poor[:6] == ["poor", "0", "1", "-", "3", "2"]
    assert " ".join(poor).endswith("below its minimum: its jobs start first")
    found = json.loads(json.dumps(as_json(Report(reader).status())))["tenants"]
    assert [each["name"] for each in found] == ["many", "full", "poor", "quiet"]


def test_jobs_of_a_tenant_at_its_maximum_wait_for_its_quota(shared_fleet, reader):
    def line():
        return next(line for line in unstyle(status_text(Report(reader).status())).splitlines() if line[:3] == "pdf")

    assert re.search(r"\d waits? for their tenant's quota", line())
    notes = {each.task_id: each.note for each in next_jobs(reader, ["pdf"], 20) if each.kept_back}
    assert set(notes.values()) == {"waits for its tenant's quota"}
    for number in range(2):
        shared_fleet.publish(f"keyed{number}!", "pdf", rules="key=city%3AHH limit=1")
    shared_fleet.scheduler.configure({"limits": "city%3AHH=0"})
    assert re.search(r"\d waits? for a key or their tenant's quota", line())


def test_metrics_have_those_with_a_quota_of_their_own(shared_fleet, reader):
    text = metrics_text(read_metrics(reader))
    for line in (
        'celery_affinity_tenant_slots{tenant="full"} 2',
        'celery_affinity_tenant_slots{tenant="quiet"} 0',
        'celery_affinity_tenant_waiting_jobs{tenant="poor"} 2',
        'celery_affinity_tenant_oldest_wait_seconds{tenant="full"} 2',
        'celery_affinity_tenant_oldest_wait_seconds{tenant="quiet"} 0',
        'celery_affinity_tenant_missing_slots{tenant="poor"} 1',
        'celery_affinity_tenant_missing_slots{tenant="full"} 0',
    ):
        assert line in text.replace(".0\n", "\n").splitlines(), line
    assert 'tenant="many"' not in text
