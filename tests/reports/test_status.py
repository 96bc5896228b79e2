"""The cost of reading the state of a fleet."""

import pytest

from celery_affinity.options.recurring import RecurringCall
from celery_affinity.reports.recurring import recurring_rows
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


def look(client):
    """Return the cost of one look at the fleet to the server: calls by command, and bytes sent."""
    before, sent_before = client.info("commandstats"), client.info("stats")["total_net_output_bytes"]
    Report(Reader(client, Keys())).status()
    sent, after = client.info("stats")["total_net_output_bytes"], client.info("commandstats")
    calls = {name: after[name]["calls"] - before.get(name, {"calls": 0})["calls"] for name in after}
    return {name: number for name, number in calls.items() if number}, sent - sent_before


def test_a_look_costs_the_same_however_many_jobs_wait_and_writes_nothing(valkey, fleet, redis_client):
    fleet.join("one", "pdf", "excel", slots=4)
    fleet.publish("later", "pdf", delay_s=600)
    for number in range(10):
        fleet.publish(f"few{number}", "pdf")
    look(redis_client)  # so that the server knows each command
    few, few_bytes = look(redis_client)
    for number in range(500):
        fleet.publish(f"many{number}", "pdf")
        fleet.publish(f"later{number}", "pdf", delay_s=600)
    many, many_bytes = look(redis_client)
    assert many == few
    assert abs(many_bytes - few_bytes) < 200, "numbers have more digits, and `info` counts itself"
    known = redis_client.command()
    writes = {f"cmdstat_{name.lower()}" for name, command in known.items() if "write" in command["flags"]}
    assert "cmdstat_hset" in writes
    assert not writes & few.keys()


def test_claims_of_specialists_are_counted_not_read(valkey, fleet, redis_client):
    fleet.join("one", "pdf", slots=300)
    look(redis_client)
    idle, _ = look(redis_client)
    for number in range(300):
        fleet.publish(f"job{number}", "pdf")
    busy, _ = look(redis_client)
    assert busy == idle
    (pdf,) = Report(Reader(redis_client, Keys())).status().types
    assert (pdf.claimed, pdf.pending) == (300, 0)


def test_the_stalest_recurring_call_is_told(fleet):
    report = Report(fleet.scheduler.reader)
    assert report.status().stale_s is None
    calls = [RecurringCall(name, "reroute", "route", name, 300_000_000) for name in ("hh", "b", "suspended", "new")]
    fleet.scheduler.declare_recurring(calls)
    assert report.status().stale_s is None, "nothing has put one off yet"
    for name in ("suspended", "hh", "b"):
        rules = f"merge={name} most=1000 bytes=1000000"
        fleet.scheduler.publish(NewJob(f"{name}+", "route", "message", task_id=name, task_name="reroute", rules=rules))
    fleet.scheduler.pause_recurring("suspended", True)
    rows = {row.name: row.matched_ago_s for row in recurring_rows(fleet.scheduler.reader)}
    stale_s = report.status().stale_s
    assert rows["hh"] <= stale_s <= rows["hh"] + 5
    assert stale_s > rows["b"]
