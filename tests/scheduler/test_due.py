"""Due recurring calls: which app gets them, and when they are no longer due."""

import pytest

from celery_affinity.options.recurring import RecurringCall
from celery_affinity.schema.constants import OTHERS_HAVE_US
from celery_affinity.schema.job_record import NewJob

TASK = "proj.reroute"
STALE_S = 300


def job(job_id, **fields):
    rules = "merge=HH most=1000 bytes=1000000"
    given = {"task_id": f"task-{job_id}", "task_name": TASK, "rules": rules} | fields
    return NewJob(job_id, "route", f"message of {job_id}", **given)


@pytest.fixture
def scheduler(fleet):
    """Return the scheduler of a fleet with one due recurring call."""
    declare(fleet.scheduler)
    fleet.scheduler.advance(STALE_S)
    return fleet.scheduler


def declare(scheduler, **fields):
    call = RecurringCall("hh", type="route", merge_key="HH", task=TASK, stale_after_us=STALE_S * 1_000_000, **fields)
    scheduler.declare_recurring([call])


def handed_out(scheduler, app="shop"):
    return scheduler.due_recurring(app, again_s=10)


def test_call_since_end_waits_for_its_scheduled_last_job(scheduler, fleet):
    declare(scheduler, since="end")
    assert scheduler.fire_recurring(
        "hh", handed_out(scheduler).due, job("later+", delay_us=2 * STALE_S * 1_000_000)
    ).fresh
    assert fleet.state("later+") == "scheduled"
    scheduler.advance(STALE_S)
    assert handed_out(scheduler) is None


@pytest.mark.parametrize("how", ["suspended", "postponed"])
def test_declined_call_goes_to_no_app_unless_due(scheduler, how):
    handed_out(scheduler)
    if how == "suspended":
        scheduler.pause_recurring("hh", True)
    else:
        scheduler.publish(job("call+"))
    scheduler.decline_recurring("shop", "hh")
    assert handed_out(scheduler, "other") is None


def test_app_that_declined_a_call_gets_it_again_later(scheduler):
    due = handed_out(scheduler)
    scheduler.decline_recurring("shop", "hh")
    scheduler.advance(OTHERS_HAVE_US / 1e6)
    assert handed_out(scheduler, "other") == due
    scheduler.decline_recurring("other", "hh")
    assert handed_out(scheduler) == due


def test_call_handed_out_for_past_firings_is_not_made(scheduler, fleet):
    old = handed_out(scheduler)
    scheduler.fire_recurring("hh", "", job("by-hand+"))
    scheduler.advance(STALE_S)
    assert scheduler.fire_recurring("hh", old.due, job("late+")) is None
    assert fleet.state("late+") is None
    assert scheduler.fire_recurring("hh", handed_out(scheduler).due, job("next+")).fresh


def test_call_handed_out_before_a_clock_reset_waits(scheduler, fleet):
    due = handed_out(scheduler)
    scheduler.advance(-1)
    assert scheduler.fire_recurring("hh", due.due, job("early+")) is None
    assert fleet.state("early+") is None
    scheduler.advance(1)
    assert scheduler.fire_recurring("hh", due.due, job("again+")).fresh


def test_refused_firing_leaves_the_call_due(scheduler, fleet):
    due = handed_out(scheduler)
    assert scheduler.fire_recurring("hh", due.due, job("bad+", priority=-5)).refused == "priority"
    assert fleet.state("bad+") is None
    assert scheduler.fire_recurring("hh", due.due, job("good+")).fresh


def test_existing_job_does_not_become_a_firing(scheduler):
    scheduler.publish(job("known+", task_name="proj.other"))
    assert not scheduler.fire_recurring("hh", handed_out(scheduler).due, job("known+")).fresh
    client, key = scheduler.client, scheduler.keys.key
    assert client.hget(key("job", "known+"), "recurring") is None
    assert client.hget(key("recurring_call", "hh"), "made") is None
