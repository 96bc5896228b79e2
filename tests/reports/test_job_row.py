"""A job's hash, parsed: missing fields and foreign values are no reason to show nothing."""

from celery_affinity.reports.job_rows import read_jobs
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet


def test_a_row_has_what_the_scripts_wrote(redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.publish("job", "a type", priority=3, on_demand=True)
    fleet.publish("later", "pdf", delay_s=60)
    job, later = read_jobs(Reader(redis_client, Keys()), ["job", "later"])
    assert (job.job_id, job.state, job.task_id, job.task, job.type) == (
        "job",
        "pending",
        "task-job",
        "tests.task",
        "a type",
    )
    assert (job.lane.on_demand, job.lane.priority, job.published_us) == (True, 3, None)
    assert later.state == "scheduled"
    assert later.enqueued_us - later.published_us == 60_000_000


def test_only_the_fields_that_are_asked_for_are_read(redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.publish("job", "pdf")
    (job,) = read_jobs(Reader(redis_client, Keys()), ["job"], ("state",))
    assert (job.state, job.type) == ("pending", "")


def test_what_is_unknown_or_spoiled_is_empty(redis_client):
    redis_client.set(Keys().key("job", "no-hash"), "what")
    redis_client.hset(
        Keys().key("job", "spoiled"), mapping={"state": b"\xff", "enqueued": "yesterday", "why": "x" * 999}
    )
    unknown, no_hash, spoiled = read_jobs(Reader(redis_client, Keys()), ["unknown", "no-hash", "spoiled"])
    assert (unknown.state, unknown.type, unknown.ended_us, unknown.why) == ("", "", 0, None)
    assert no_hash.state == ""
    assert (spoiled.state, spoiled.enqueued_us, len(spoiled.why)) == ("\ufffd", 0, 300)
