"""An app moves waiting jobs to another type, priority or mode."""

import pytest
from celery import Celery

import celery_affinity
from celery_affinity.admin.actions import MoveTarget
from celery_affinity.errors import OptionError


def test_move_to_a_served_type_starts_the_job(fleet, jobs):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pfd")
    change = jobs.move("task-job", "pdf")
    assert (change.found, change.done, change.note) == ("pending", True, "moved: type 'pdf'")
    fleet.ack("worker", *fleet.inbox("worker"))
    again = jobs.move("task-job", "pdf")
    assert (again.found, again.done, again.note) == ("running", False, "worker worker@host has it already: running")


def test_moved_job_keeps_its_enqueue_time(fleet, jobs):
    for name, type_ in (("first", "excel"), ("second", "pdf"), ("third", "excel"), ("fourth", "pdf")):
        fleet.publish(name, type_)
    before = jobs.get("task-third").enqueued_s
    assert jobs.move("task-third", "pdf").done
    assert jobs.get("task-third").enqueued_s == before
    assert fleet.order(3, "pdf") == ["second", "third", "fourth"]


def test_move_to_an_unserved_type_is_noted(fleet, jobs):
    fleet.join("worker", "excel", slots=0)
    fleet.join("another", "pdf")
    fleet.publish("job", "excel")
    note = jobs.move("task-job", "pdff").note
    assert note == "moved: type 'pdff'; no live worker serves type 'pdff'; did you mean 'pdf'?"


def test_prioritise_sets_the_listed_priority_and_mode(fleet, jobs):
    fleet.publish("job", "pdf", priority=1)
    assert jobs.prioritise("task-job", priority=9, on_demand=True).note == "moved: priority 9, on demand"
    job = jobs.get("task-job")
    assert (job.priority, job.mode) == (9, "on_demand")
    fleet.scheduler.configure({"priority_order": "lower-first"})
    jobs.prioritise("task-job", priority=2)
    assert jobs.get("task-job").priority == 2
    assert jobs.prioritise("task-job", on_demand=False).done
    assert jobs.get("task-job").mode == "queued"


def test_moved_scheduled_job_keeps_its_due_time(fleet, jobs):
    fleet.publish("job", "excel", delay_s=600)
    due_s = jobs.get("task-job").due_s
    assert jobs.move("task-job", "pdf").found == "scheduled"
    job = jobs.get("task-job")
    assert (job.state, job.type, job.due_s) == ("scheduled", "pdf", due_s)


def test_moved_job_stays_blocked_by_its_key(fleet, jobs):
    rules = "key=a limit=1"
    fleet.join("worker", "excel")
    for name in ("runs!", "waits!"):
        fleet.publish(name, "excel", rules=rules)
    (claim,) = fleet.inbox("worker")
    assert jobs.move("task-waits!", "pdf").done
    fleet.join("another", "pdf")
    assert fleet.jobs("another") == []
    fleet.end("worker", claim)
    assert fleet.jobs("another") == ["waits!"]


def test_merged_calls_move_with_their_batch(fleet, jobs):
    for name in ("one+", "two+", "three+"):
        fleet.publish(name, "excel", rules="merge=m most=10 bytes=1000000")
    note = jobs.move("task-two+", "pdf").note
    assert note.startswith("moved: type 'pdf'; it is a run of 3 calls, which go together; no live worker")
    assert {jobs.get(f"task-{name}+").type for name in ("one", "two", "three")} == {"pdf"}
    fleet.publish("four+", "pdf", rules="merge=m most=10 bytes=1000000")  # joins the batch in its new type
    assert jobs.get("task-four+").calls == 4
    fleet.publish("five+", "excel", rules="merge=m most=10 bytes=1000000")
    assert jobs.get("task-five+").calls == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give the jobs a new type, priority or mode"),
        ({"type": " "}, "type must be the name of a queue"),
        ({"priority": 11}, "priority must be a whole number from 0 to 10, got: 11"),
        ({"on_demand": "yes"}, "on_demand must be True or False, got: 'yes'"),
    ],
)
def test_invalid_move_target_names_accepted_values(options, message):
    with pytest.raises(OptionError, match=message):
        MoveTarget(**options)


def test_move_to_an_unscheduled_queue_is_refused(fleet, valkey):
    app = Celery(broker=valkey.url, set_as_current=False)
    app.conf.update(broker_transport="celery_affinity:Transport", affinity_queues=["pdf"])
    jobs = celery_affinity.jobs(app)
    fleet.publish("job", "pdf")
    with pytest.raises(OptionError, match=r"a queue that is scheduled \(affinity_queues\), got: 'plain'"):
        jobs.move("task-job", "plain")


def test_ended_and_unknown_jobs_are_not_moved(fleet, jobs):
    fleet.bury("dead")
    fleet.publish("done", "pdf")
    fleet.end("worker", *fleet.inbox("worker"))
    notes = [
        (change.found, change.done, change.note)
        for change in map(jobs.prioritise, ("task-dead", "task-done", "no"), (1, 1, 1))
    ]
    assert notes == [
        ("dead", False, "it is a dead letter, which waits for nothing"),
        ("done", False, "it has ended: done"),
        ("unknown", False, "never published here, or forgotten"),
    ]
