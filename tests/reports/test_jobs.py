"""The facts of jobs by id: they agree with `explain`, and cost few round trips."""

import pytest

from celery_affinity.clock import SECOND_US
from celery_affinity.reports.explain import explain
from celery_affinity.reports.jobs import get_jobs, live_jobs

from ..support.asking import why

MERGING = "merge=city most=100 bytes=10000"


def agrees(reader, job):
    found, explained = get_jobs(reader, [f"task-{job}"])[0], why(reader, job)
    for name in vars(found).keys() - {"note"}:  # of a merged call, `explain` has more to note
        assert getattr(found, name) == getattr(explained, name), name
    assert (found.waited_s, found.ran_s) == (explained.waited_s, explained.ran_s)
    assert live_jobs(reader, [found.id]) == (set() if found.has_ended else {found.id})
    return found


def test_get_jobs_agrees_with_explain_in_each_state(fleet, reader):
    start_s = fleet.scheduler.now_us / SECOND_US
    fleet.publish("job", "pdf", priority=3, delay_s=10)
    found = agrees(reader, "job")
    assert (found.state, found.enqueued_s, found.due_s) == ("scheduled", start_s, start_s + 10)
    fleet.scheduler.advance(10)
    fleet.scheduler.tick()
    assert agrees(reader, "job").state == "pending"
    fleet.join("worker", "pdf")
    found = agrees(reader, "job")
    assert (found.state, found.claimed_s, found.worker) == ("claimed", start_s + 10, "worker@host")
    (claim,) = fleet.inbox("worker")
    assert agrees(reader, "job").state == "running"
    fleet.scheduler.advance(11)
    assert agrees(reader, "job").state == "claimed", "its worker has had the time to say that it started"
    slots = {"slots": 1, "other": 0, "draining": False}
    fleet.scheduler.sync("worker", [(*each, 2_000_000) for each in fleet.claims("worker").items()], **slots)
    found = agrees(reader, "job")
    assert (found.state, found.started_s) == ("running", start_s + 19)
    fleet.end("worker", claim, outcome="failed ValueError: no")
    found = agrees(reader, "job")
    assert (found.state, found.why, found.ended_s) == ("failed", "ValueError: no", start_s + 21)
    assert (found.source, found.has_ended) == ("broker", True)
    assert (found.waited_s, found.ran_s) == (0.0, 2.0), "from the ETA to the claim; from the start to the end"


def test_wait_and_run_time_are_kept_after_the_end(fleet, reader):
    for job in ("short", "revoked"):
        fleet.publish(job, "pdf")
    fleet.scheduler.advance(3)
    fleet.scheduler.revoke(["task-revoked"], [], keep_s=60)
    found = agrees(reader, "short")
    assert (found.waited_s, found.ran_s) == (None, None), "it waits"
    fleet.join("worker", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.advance(2)
    found = agrees(reader, "short")
    assert (found.waited_s, found.ran_s) == (3.0, None), "it runs"
    fleet.end("worker", claim)
    found = agrees(reader, "short")
    assert (found.started_s, found.waited_s, found.ran_s) == (None, 3.0, 2.0), "no heartbeat told its start"
    found = agrees(reader, "revoked")
    assert (found.state, found.waited_s, found.ran_s) == ("revoked", 3.0, None), "it never ran"


def test_requeued_job_has_no_finished_wait(fleet, reader):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.advance(3)
    fleet.join("worker")
    fleet.end("worker", claim, outcome="unsettled", inline=False)
    found = agrees(reader, "job")
    assert (found.state, found.waited_s, found.ran_s) == ("pending", None, None)


def test_dead_letter_has_its_reason(fleet, reader):
    fleet.bury("job", outcome="rejected of no use")
    found = agrees(reader, "job")
    assert (found.state, found.reason, found.why) == ("dead", "rejected", "of no use")


def test_task_id_and_job_id_find_the_same_job(fleet, reader):
    fleet.publish("job", "pdf")
    assert get_jobs(reader, ["job"])[0] == get_jobs(reader, ["task-job"])[0]


@pytest.mark.parametrize("id", ["nobody", "", "a b", "{x}:y", "\udc80", "x" * 10_000, "\0"])
def test_unpublished_id_is_unknown(reader, id):
    assert (get_jobs(reader, [id])[0].state, get_jobs(reader, [id])[0].source) == ("unknown", None)


def test_task_id_finds_the_tasks_newest_job(fleet, reader):
    fleet.publish("first", "pdf", task_id="task")
    fleet.publish("second", "excel", task_id="task")
    found = get_jobs(reader, ["task"])[0]
    assert (found.job_id, found.type, found.other_jobs) == ("second", "excel", ["first"])


def test_merged_calls_have_the_state_of_their_run(fleet, reader):
    for name in ("a+", "b+", "c+"):
        fleet.publish(name, "pdf", rules=MERGING)
    for name in ("a+", "b+", "c+"):
        found = agrees(reader, name)
        assert (found.state, found.calls, found.merge_key) == ("pending", 3, "city")
    fleet.join("worker", "pdf")
    assert {agrees(reader, name).state for name in ("a+", "b+", "c+")} == {"claimed"}


def test_job_has_its_keys(fleet, reader):
    fleet.publish("job!", "pdf", rules="key=city%3AHH limit=1")
    assert get_jobs(reader, ["task-job!"])[0].keys == ["city:HH"]


def test_priority_follows_the_apps_priority_order(fleet, reader):
    fleet.join("worker", "excel", settings={"priority_order": "lower-first"})
    fleet.publish("job", "pdf", priority=9)
    assert agrees(reader, "job").priority == explain(reader, "task-job").priority


def test_many_jobs_take_as_few_round_trips_as_one(fleet, reader):
    fleet.join("worker", "pdf", slots=2)
    for name in ("one", "two", "three"):
        fleet.publish(name, "pdf")
    fleet.publish("first", "excel", task_id="task")
    fleet.publish("second", "excel", task_id="task")
    fleet.inbox("worker")
    ids = ["task-one", "nobody", "three", "task-two", "task", "\udc80", "task-one"]
    alone = [get_jobs(reader, [each])[0] for each in ids]
    asked, ask = [], reader.ask
    reader.ask = lambda commands: asked.append(commands) or ask(commands)
    assert get_jobs(reader, ids) == alone
    assert [each.state for each in alone] == [
        "running", "unknown", "pending", "running", "pending", "unknown", "running"
    ]  # fmt: skip
    assert len(asked) <= 5
    assert get_jobs(reader, []) == []


def test_pending_job_takes_two_round_trips(fleet, reader):
    fleet.publish("job", "pdf")
    asked, ask = [], reader.ask
    reader.ask = lambda commands: asked.append(commands) or ask(commands)
    get_jobs(reader, ["task-job"])
    assert len(asked) == 2
