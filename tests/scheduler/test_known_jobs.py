"""A publish of a known job changes nothing, regardless of its fields.

Follow-up calls of an end that is reported twice keep their job ids, but get new task ids.
"""

from dataclasses import replace

import pytest

from celery_affinity.schema.bounds import Bound
from celery_affinity.schema.job_record import NewJob

HOUR_S = 3600
#: Event -> the job's state afterwards.
STATES = {each: each for each in ("pending", "scheduled", "claimed", "done", "dead", "revoked", "expired")}
STATES |= {"kept": "done", "its task is gone": "done"}


@pytest.fixture(params=sorted(STATES))
def known(request, fleet):
    """A job in each state."""
    brought_to = request.param
    keep = {"keep": HOUR_S} if brought_to in ("kept", "its task is gone") else None
    later = {"scheduled": {"delay_s": 60}, "expired": {"expires_s": 1}}
    fleet.publish("job", "pdf", task_id="task", **later.get(brought_to, {}))
    if brought_to == "revoked":
        fleet.scheduler.revoke(["task"], [], keep_s=HOUR_S)
    elif brought_to == "expired":
        fleet.scheduler.advance(2)
        fleet.scheduler.tick(["pdf"])
    elif brought_to not in ("pending", "scheduled"):
        fleet.join("worker", "pdf", settings=keep)
    if STATES[brought_to] in ("done", "dead"):
        fleet.end("worker", *fleet.inbox("worker"), outcome="rejected" if brought_to == "dead" else "acked")
    if brought_to == "its task is gone":
        fleet.scheduler.client.delete(fleet.scheduler.keys.key("task", "task"))
    assert fleet.state("job") == STATES[brought_to]
    return "job"


def again(job, **fields):
    return NewJob(job, "pdf", "another message", task_name="another", priority=9, **fields)


def everything(fleet):
    client = fleet.scheduler.client
    return {key: (client.dump(key), client.ttl(key) == -1) for key in client.scan_iter()}


@pytest.mark.parametrize("task", ["task", "another", ""])
def test_publish_of_a_known_job_changes_nothing(fleet, known, task):
    before = everything(fleet)
    (published,) = fleet.scheduler.publish(again(known, task_id=task))
    assert not published.fresh
    assert everything(fleet) == before


def test_known_job_among_others_is_not_counted(fleet, known):
    """The others are published, as many as the bound allows."""
    row = fleet.scheduler.client.dump(fleet.scheduler.keys.key("job", known))
    others = fleet.made(["one", "two"], "pdf")
    bound = Bound(2 + (fleet.state(known) == "pending"))
    jobs = [replace(job, bound=bound) for job in (others[0], again(known, task_id="another"), others[1])]
    assert [each.fresh for each in fleet.scheduler.publish(*jobs)] == [True, False, True]
    assert fleet.scheduler.client.dump(fleet.scheduler.keys.key("job", known)) == row


def test_job_that_is_stored_by_half_is_published_again(fleet):
    """A script that failed on a corrupt key stored the hash of each job, but did not queue it."""
    client, keys = fleet.scheduler.client, fleet.scheduler.keys
    jobs = [NewJob("pending", "pdf", "m"), NewJob("scheduled", "pdf", "m", delay_us=60_000_000)]
    fleet.scheduler.publish(*jobs)
    client.delete(keys.key("lane", "pdf", "queued.0"), keys.key("heads"), keys.key("scheduled"))
    assert [each.fresh for each in fleet.scheduler.publish(*jobs)] == [True, True]
    assert client.zrange(keys.key("lane", "pdf", "queued.0"), 0, -1) == [b"pending"]
    assert client.zrange(keys.key("scheduled"), 0, -1) == [b"scheduled"]
