"""A publish reads the data of its task only if key `task` exists, so a revoked task has this key."""

import pytest
import redis

from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import NONE

HOUR_S = 3600


@pytest.fixture
def ttl_ms(fleet):
    return lambda name, part: fleet.scheduler.client.pttl(fleet.scheduler.keys.key(name, part))


def published(fleet, job, task):
    (found,) = fleet.scheduler.publish(NewJob(job, "pdf", "message", task_id=task))
    return found.fresh and fleet.state(job)


def test_task_without_a_job_stays_revoked(fleet):
    fleet.scheduler.revoke(["task"], [], keep_s=HOUR_S)
    assert [published(fleet, job, "task") for job in ("a", "b", "a")] == ["revoked", "revoked", False]
    assert published(fleet, "c", "other task") == "pending"


def test_revoke_returns_tasks_without_a_waiting_job(fleet):
    fleet.join("worker", "pdf")
    for name in ("claimed", "waiting", *map(str, range(20))):
        fleet.publish(name, "pdf")
    tasks = [*(f"task-{number}" for number in range(20)), "task-claimed", "none of ours", "task-waiting"]
    revoked = fleet.scheduler.revoke(tasks, [], keep_s=HOUR_S)
    assert (revoked.jobs, revoked.others) == (21, ["task-claimed", "none of ours"])
    assert fleet.scheduler.revoke(["task-waiting"], ["of:a"], keep_s=HOUR_S).jobs == 0


@pytest.mark.parametrize("is_over", [False, True], ids=["before its end", "after its end"])
def test_task_whose_job_ended_stays_revoked(fleet, ttl_ms, is_over):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf", task_id="task")
    (claim,) = fleet.inbox("worker")
    if is_over:
        fleet.end("worker", claim)
    fleet.scheduler.revoke(["task"], [], keep_s=HOUR_S)
    if not is_over:
        fleet.end("worker", claim)
    assert ttl_ms("task", "task") >= ttl_ms("revoked", "task") > 0
    assert published(fleet, "retry", "task") == "revoked"


def test_task_whose_dead_letter_is_dropped_stays_revoked(fleet, ttl_ms):
    fleet.bury("job")
    fleet.scheduler.revoke(["task-job"], [], keep_s=HOUR_S)
    assert fleet.scheduler.drop(["job"]) == 1
    assert fleet.scheduler.client.get(fleet.scheduler.keys.key("task", "task-job")) == NONE, "its job is gone"
    assert ttl_ms("task", "task-job") >= ttl_ms("revoked", "task-job") > 0
    assert published(fleet, "retry", "task-job") == "revoked"


def test_repeated_publish_after_a_failure_finds_its_job(fleet, redis_client):
    key = fleet.scheduler.keys.key
    redis_client.set(key("lane", "pdf", "queued.0"), "no lane")
    with pytest.raises(redis.ResponseError):
        published(fleet, "job", "task")
    redis_client.delete(key("lane", "pdf", "queued.0"))
    assert published(fleet, "job", "task") == "pending"
    assert published(fleet, "job", "task") is False
    assert redis_client.get(key("task", "task")) == b"job"
    assert not redis_client.exists(key("jobs_of_task", "task"))
