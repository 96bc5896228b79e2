"""Ended jobs: how long they are retained, and which of them are listed."""

import pytest

from celery_affinity.errors import OptionError
from celery_affinity.reports import dead_letters, jobs
from celery_affinity.reports.job_lists import JobFilter, jobs_page
from celery_affinity.schema.constants import ENDED_KEPT_S, MAX_KEPT_MESSAGE_BYTES, MAX_TRIMMED
from celery_affinity.schema.keys import Keys

from ..support.counting import Counting
from ..support.scripted_fleet import ScriptedFleet

HOUR_S = 3600


def run(fleet, *names, outcome="acked"):
    """Run jobs one after another on a worker."""
    for name in names:
        fleet.publish(name, "pdf")
        fleet.end("worker", *fleet.inbox("worker"), outcome=outcome, inline=False)
        fleet.scheduler.advance(1)


def listed(fleet, state):
    return [job.job_id for job in jobs_page(fleet.scheduler.reader, JobFilter(state)).jobs]


def test_ended_jobs_are_listed_by_state_until_deleted(fleet):
    fleet.join("worker", "pdf", settings={"keep": HOUR_S})
    run(fleet, "good", "better")
    run(fleet, "bad", outcome="failed ValueError: no such page")
    fleet.publish("tired", "excel", expires_s=1)
    fleet.publish("unwanted", "excel")
    fleet.scheduler.revoke(["task-unwanted"], [], keep_s=60)
    assert listed(fleet, "revoked") == ["unwanted"]  # the end of "tired" is unreported
    fleet.advance_and_tick(2)
    while ending := fleet.scheduler.next_report("app", again_s=1):
        fleet.scheduler.ack_report([ending.job_id])
    wanted = {"done": ["good", "better"], "failed": ["bad"], "revoked": ["unwanted"], "expired": ["tired"]}
    assert {state: listed(fleet, state) for state in wanted} == wanted
    client, key = fleet.scheduler.client, fleet.scheduler.keys.key
    assert all(HOUR_S - 60 < client.ttl(key("job", job)) <= HOUR_S for each in wanted.values() for job in each)
    assert jobs.get_jobs(fleet.scheduler.reader, ["task-bad"])[0].why == "ValueError: no such page"
    fleet.advance_and_tick(HOUR_S + 3)
    assert not client.exists(key("ended"))


def test_oldest_ended_jobs_are_deleted_above_the_maximum(fleet):
    fleet.join("worker", "pdf", settings={"keep": HOUR_S, "keep_max": 2})
    run(fleet, "one", "two", "three", "four")
    fleet.scheduler.tick()
    assert listed(fleet, "done") == ["three", "four"]
    client, key = fleet.scheduler.client, fleet.scheduler.keys.key
    assert client.ttl(key("job", "one")) <= 60
    assert client.ttl(key("task", "task-one")) <= 60


def test_ended_job_is_unlisted_when_its_retention_ends(fleet):
    fleet.join("worker", "pdf", settings={"keep": HOUR_S})
    run(fleet, "job")
    fleet.advance_and_tick(HOUR_S - 2)
    assert fleet.scheduler.client.exists(fleet.scheduler.keys.key("ended"))
    fleet.advance_and_tick(1)
    assert not fleet.scheduler.client.exists(fleet.scheduler.keys.key("ended"))


def test_retention_of_a_minute_is_unlisted_until_changed(fleet):
    fleet.join("worker", "pdf")
    run(fleet, "early")
    with pytest.raises(OptionError, match="others have lists if affinity_keep is above 60 s"):
        listed(fleet, "done")
    fleet.scheduler.configure({"keep_us": str(HOUR_S * 1_000_000)})
    fleet.sync("worker", {})
    run(fleet, "late")
    assert listed(fleet, "done") == ["late"]


def test_finally_failed_job_is_a_replayable_dead_letter(fleet):
    fleet.join("worker", "pdf", settings={"keep_failed": True})
    run(fleet, "job", outcome="failed ValueError: no such page")
    (letter,) = dead_letters.find_letters(fleet.scheduler.reader, dead_letters.LetterFilter(reason="failed"))
    assert (letter.job_id, letter.why, letter.replayable) == ("job", "ValueError: no such page", True)
    assert fleet.scheduler.next_report("app", again_s=1) is None, "its caller was told by its worker"
    assert fleet.scheduler.replay(["job"]) == ["job"]
    (claim,) = fleet.inbox("worker")
    assert claim.message == b"message of job"


def test_kept_failed_job_can_be_replayed(fleet):
    fleet.join("worker", "pdf", settings={"keep": HOUR_S})
    client, key = fleet.scheduler.client, fleet.scheduler.keys.key
    run(fleet, "good")
    run(fleet, "job", outcome="failed ValueError: no such page")
    assert not client.exists(key("message", "good"))
    assert client.ttl(key("message", "job")) == client.ttl(key("job", "job"))
    assert [job.replayable for job in jobs.get_jobs(fleet.scheduler.reader, ["task-good", "task-job"])] == [False, True]
    assert fleet.scheduler.replay(["good", "job"]) == ["job"]
    (claim,) = fleet.inbox("worker")
    assert claim.message == b"message of job"
    assert [client.ttl(key(kind, "job")) for kind in ("message", "job")] == [-1, -1]
    assert client.ttl(key("task", "task-job")) == -1
    assert (listed(fleet, "failed"), listed(fleet, "done")) == ([], ["good"])
    fleet.end("worker", claim)
    assert fleet.scheduler.replay(["job"]) == [], "it has succeeded"


@pytest.mark.parametrize(
    ("settings", "message"),
    [({}, "short"), ({"keep": HOUR_S}, "x" * (MAX_KEPT_MESSAGE_BYTES + 1))],
    ids=["kept for a minute", "long message"],
)
def test_message_of_a_failed_job_is_deleted(fleet, settings, message):
    fleet.join("worker", "pdf", settings=settings)
    fleet.publish("job", "pdf", message=message)
    fleet.end("worker", *fleet.inbox("worker"), outcome="failed ValueError", inline=False)
    assert not fleet.scheduler.client.exists(fleet.scheduler.keys.key("message", "job"))
    assert not jobs.get_jobs(fleet.scheduler.reader, ["task-job"])[0].replayable
    assert fleet.scheduler.replay(["job"]) == []


def test_message_of_an_excess_failed_job_is_deleted_with_it(fleet):
    fleet.join("worker", "pdf", settings={"keep": HOUR_S, "keep_max": 1})
    run(fleet, "one", "two", outcome="failed ValueError")
    fleet.scheduler.tick()
    ttl, key = fleet.scheduler.client.ttl, fleet.scheduler.keys.key
    assert ttl(key("message", "one")) <= ENDED_KEPT_S < ttl(key("message", "two"))


def test_failed_job_with_an_overwritten_message_still_ends(fleet):
    fleet.join("worker", "pdf", settings={"keep": HOUR_S})
    fleet.publish("job", "pdf")
    (claim,) = fleet.inbox("worker")
    client, message = fleet.scheduler.client, fleet.scheduler.keys.key("message", "job")
    client.delete(message)
    client.lpush(message, "no message")
    fleet.end("worker", claim, outcome="failed ValueError", inline=False)
    assert listed(fleet, "failed") == ["job"]
    assert not client.exists(message)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [("rejected", "without a reason"), ("rejected Reject: no such customer", "Reject: no such customer")],
)
def test_each_dead_letter_has_a_reason(fleet, outcome, why):
    fleet.bury("job", outcome=outcome)
    assert why in jobs.get_jobs(fleet.scheduler.reader, ["task-job"])[0].why
    fleet.bury("acked", acked=True)
    assert "may have done its work" in jobs.get_jobs(fleet.scheduler.reader, ["task-acked"])[0].why


def test_many_excess_ended_jobs_are_deleted_in_parts(redis_client):
    counting = Counting(redis_client, Keys())
    fleet = ScriptedFleet(counting)
    fleet.join("worker", "pdf", slots=2 * MAX_TRIMMED, settings={"keep": HOUR_S, "keep_max": 1})
    counting.publish(*fleet.made([f"job{number}" for number in range(MAX_TRIMMED + 2)], "pdf"))
    fleet.end("worker", *fleet.inbox("worker"), inline=False)
    counting.calls.clear()
    counting.tick()
    assert [name for name, *_ in counting.calls] == ["tick", "tick"]
    assert redis_client.zcard(counting.keys.key("ended")) == 1
