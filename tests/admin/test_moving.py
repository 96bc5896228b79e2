"""Jobs that wait are moved: another type, priority or mode, by an app."""

import pytest
from celery import Celery

import celery_affinity
from celery_affinity.admin.actions import MoveTarget
from celery_affinity.errors import OptionError


def test_a_job_of_a_misspelt_type_is_moved_to_the_one_that_was_meant_and_starts(fleet, jobs):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pfd")
    change = jobs.move("task-job", "pdf")
    assert (change.found, change.done, change.note) == ("pending", True, "moved: type 'pdf'")
    fleet.ack("worker", *fleet.inbox("worker"))
    again = jobs.move("task-job", "pdf")
    assert (again.found, again.done, again.note) == ("running", False, "worker worker@host has it already: running")


def test_a_job_keeps_its_place_in_time_in_the_lane_that_it_is_moved_to(fleet, jobs):
    for name, type_ in (("first", "excel"), ("second", "pdf"), ("third", "excel"), ("fourth", "pdf")):
        fleet.publish(name, type_)
    before = jobs.get("task-third").enqueued_s
    assert jobs.move("task-third", "pdf").done
    assert jobs.get("task-third").enqueued_s == before
    assert fleet.order(3, "pdf") == ["second", "third", "fourth"]


def test_a_type_that_nobody_serves_is_said(fleet, jobs):
    fleet.join("worker", "excel", slots=0)
    fleet.join("another", "pdf")
    fleet.publish("job", "excel")
    said = jobs.move("task-job", "pdff").note
    assert said == "moved: type 'pdff'; no live worker serves type 'pdff'; did you mean 'pdf'?"


def test_priority_and_mode_are_those_that_lists_show(fleet, jobs):
    fleet.publish("job", "pdf", priority=1)
    assert jobs.prioritise("task-job", priority=9, on_demand=True).note == "moved: priority 9, on demand"
    found = jobs.get("task-job")
    assert (found.priority, found.mode) == (9, "on_demand")
    fleet.scheduler.configure({"priority_order": "lower-first"})
    jobs.prioritise("task-job", priority=2)
    assert jobs.get("task-job").priority == 2
    assert jobs.prioritise("task-job", on_demand=False).done
    assert jobs.get("task-job").mode == "queued"


def test_a_scheduled_job_waits_for_its_time_and_then_elsewhere(fleet, jobs):
    fleet.publish("job", "excel", delay_s=600)
    due_s = jobs.get("task-job").due_s
    assert jobs.move("task-job", "pdf").found == "scheduled"
    found = jobs.get("task-job")
    assert (found.state, found.type, found.due_s) == ("scheduled", "pdf", due_s)


def test_what_is_kept_back_by_its_key_is_moved_and_waits_for_the_key_there(fleet, jobs):
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


def test_calls_that_were_merged_move_with_their_run(fleet, jobs):
    for name in ("one+", "two+", "three+"):
        fleet.publish(name, "excel", rules="merge=m most=10 bytes=1000000")
    note = jobs.move("task-two+", "pdf").note
    assert note.startswith("moved: type 'pdf'; it is a run of 3 calls, which go together; no live worker")
    assert {jobs.get(f"task-{name}+").type for name in ("one", "two", "three")} == {"pdf"}
    fleet.publish("four+", "pdf", rules="merge=m most=10 bytes=1000000")  # one that joins a run joins it there
    assert jobs.get("task-four+").calls == 4
    fleet.publish("five+", "excel", rules="merge=m most=10 bytes=1000000")
    assert jobs.get("task-five+").calls == 1


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({}, "give the jobs a new type, priority or mode"),
        ({"type": " "}, "type must be the name of a queue"),
        ({"priority": 11}, "priority must be a whole number from 0 to 10, got: 11"),
        ({"on_demand": "yes"}, "on_demand must be True or False, got: 'yes'"),
    ],
)
def test_a_wish_that_cannot_be_says_what_is_accepted(wish, words):
    with pytest.raises(OptionError, match=words):
        MoveTarget(**wish)


def test_a_queue_that_is_not_scheduled_is_no_type_to_move_to(fleet, valkey):
    app = Celery(broker=valkey.url, set_as_current=False)
    app.conf.update(broker_transport="celery_affinity:Transport", affinity_queues=["pdf"])
    jobs = celery_affinity.jobs(app)
    fleet.publish("job", "pdf")
    with pytest.raises(OptionError, match=r"a queue that is scheduled \(affinity_queues\), got: 'plain'"):
        jobs.move("task-job", "plain")


def test_what_has_ended_or_is_not_known_is_not_moved(fleet, jobs):
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
