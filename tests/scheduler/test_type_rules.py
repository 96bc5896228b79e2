"""Pauses and limits of whole types on a server: cases that the random steps of conformance do not show by name."""

import pytest

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.constants import MAX_RESUMED, MAX_SIGNED, TICKERS
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet


def test_paused_type_waits_and_other_types_continue(fleet):
    fleet.join("worker", "pdf", "excel", slots=2)
    assert fleet.scheduler.pause("type:pdf", why="db migration")
    assert not fleet.scheduler.pause("type:pdf", why="still")
    fleet.publish("one", "pdf")
    fleet.publish("other", "excel")
    assert fleet.jobs("worker") == ["other"]
    assert fleet.scheduler.resume("type:pdf")
    assert fleet.jobs("worker") == ["one"]
    assert not fleet.scheduler.resume("type:pdf")


@pytest.mark.parametrize(("for_s", "starts"), [(None, []), (3600, []), (1, ["job"])])
def test_repeated_pause_replaces_the_end(fleet, for_s, starts):
    fleet.scheduler.configure({"worker_timeout_us": "1000000000"})  # no worker here sends heartbeats
    fleet.join("worker", "pdf")
    assert fleet.scheduler.pause("type:pdf", for_s=60)
    assert not fleet.scheduler.pause("type:pdf", for_s=for_s)
    fleet.publish("job", "pdf")
    fleet.advance_and_tick(60)
    assert fleet.jobs("worker") == starts


def test_pause_of_everything_blocks_the_reply_to_a_release(fleet):
    fleet.join("worker", "pdf")
    for name in ("first", "second"):
        fleet.publish(name, "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.pause("*")
    assert fleet.end("worker", claim) == []
    fleet.scheduler.resume("*")
    assert fleet.jobs("worker") == ["second"]


def test_key_changes_in_a_closed_type_are_written(fleet):
    """The claim of "p!" takes the key's last place, so "next!" leaves its lane, although its type is already full."""
    fleet.scheduler.configure({"limits": "type%3Aexcel=1"})
    fleet.scheduler.tick()  # counts the running jobs
    for job, type_, rules in (
        ("first!", "excel", "key=k limit=2"),
        ("next!", "excel", "key=k limit=2"),
        ("plain", "excel", ""),
        ("p!", "pdf", "key=k limit=2"),
    ):
        fleet.publish(job, type_, rules=rules, priority=9 if type_ == "excel" else 0)
    fleet.join("worker", "excel", "pdf", slots=3)
    claims = fleet.inbox("worker")
    assert [claim.job_id for claim in claims] == ["first!", "p!"]
    assert fleet.scheduler.repair() == []


def test_new_type_limit_counts_running_jobs(fleet):
    fleet.join("worker", "pdf", slots=4)
    for number in range(2):
        fleet.publish(f"early-{number}", "pdf")
    claims = fleet.inbox("worker")
    fleet.configure_and_tick({"limits": "type%3Apdf=2"})
    fleet.publish("late", "pdf")
    assert fleet.jobs("worker") == []
    assert [claim.job_id for claim in fleet.end("worker", claims[0])] == ["late"]


@pytest.mark.parametrize(("limit", "further"), [(1, 0), (3, 1), (4, 2)])
def test_changed_type_limit_applies_immediately(fleet, limit, further):
    fleet.configure_and_tick({"limits": "type%3Apdf=2"})
    fleet.join("worker", "pdf", slots=9)
    for number in range(9):
        fleet.publish(str(number), "pdf")
    running = fleet.inbox("worker")
    assert len(running) == 2
    fleet.scheduler.configure({"limits": f"type%3Apdf={limit}"})
    assert len(fleet.jobs("worker")) == further
    assert len(fleet.end("worker", running[0])) == (limit > 1)


def test_no_job_of_a_limited_type_is_prefetched(fleet):
    """A prefetched job would count, and another worker could run another job instead."""
    fleet.configure_and_tick({"limits": "type%3Apdf=9"})
    fleet.join("worker", "pdf")
    for number in range(5):
        fleet.publish(str(number), "pdf")
    (first,) = fleet.inbox("worker")
    assert len(fleet.end("worker", first, most_ahead=4)) == 1


def test_type_is_not_full_while_its_claims_are_counted(fleet, redis_client):
    """Claims that an earlier limit counted are found before the others."""
    fleet.configure_and_tick({"limits": "type%3Apdf=3"})
    fleet.join("worker", "pdf", slots=3)
    for number in range(3):
        fleet.publish(f"early-{number}", "pdf")
    claims = fleet.inbox("worker")
    for limits in (" ", "type%3Apdf=1"):
        fleet.scheduler.configure({"limits": limits})
    fleet.end("worker", claims[0])
    assert redis_client.hget(Keys().key("type_rules"), "pdf") == b"limit=1 counting"
    fleet.scheduler.tick()
    assert redis_client.hget(Keys().key("type_rules"), "pdf") == b"limit=1 full"


def test_full_type_stays_full_when_keys_move_jobs(fleet):
    """Each claim of another type admits the next job of the common key to the full type's lane."""
    fleet.scheduler.configure({"limits": "type%3Apdf=1"})
    fleet.scheduler.tick()  # counts the running jobs
    for number, type_ in enumerate(("pdf", "pdf", "excel", "pdf", "excel")):
        fleet.publish(f"{number}!", type_, priority=9 if type_ == "pdf" else 0, rules="key=k limit=9")
    fleet.join("worker", "pdf", "excel", slots=9)
    assert fleet.jobs("worker") == ["0!", "2!", "4!"]


def test_pause_message_precedes_unread_jobs_in_an_inbox(fleet):
    fleet.join("busy", "pdf")
    fleet.publish("job", "pdf")
    (fence,) = fleet.claims("busy").values()
    fleet.scheduler.pause("type:pdf")
    inbox = fleet.scheduler.client.lrange(fleet.scheduler.keys.key("inbox", "busy"), 0, -1)
    assert inbox[-1] == f"\npaused type:pdf {fence}".encode(), "the next that the worker reads"
    assert len(inbox) == 2


def test_ticks_send_the_pause_messages_of_a_large_fleet(redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    workers = [f"worker-{number:03}" for number in range(2 * MAX_SIGNED + 10)]
    for worker in workers:
        fleet.join(worker, "pdf")
    fleet.scheduler.pause("type:pdf")
    fleet.scheduler.pause("*")
    with_signs = sum(bool(fleet.signs(worker)) for worker in workers)
    assert with_signs == MAX_SIGNED
    assert ["tick"] in [sign for worker in workers[:TICKERS] for sign in fleet.signs(worker)]
    fleet.scheduler.tick()
    for worker in workers:
        signs = {tuple(sign) for sign in fleet.signs(worker)} - {("tick",)}
        assert signs == {("paused", "type:pdf", "0"), ("paused", "*", "0")}
    assert not redis_client.exists(Keys().key("pause_signs"))


def test_ended_pause_sends_no_further_messages(fleet):
    workers = [f"worker-{number:03}" for number in range(MAX_SIGNED + 10)]
    for worker in workers:
        fleet.join(worker, "pdf")
    fleet.scheduler.pause("type:pdf")
    fleet.scheduler.resume("type:pdf")
    fleet.scheduler.tick()
    assert sum(["paused", "type:pdf", "0"] in fleet.signs(worker) for worker in workers) == MAX_SIGNED


@pytest.mark.parametrize("number", [3 * MAX_RESUMED, 7 * MAX_RESUMED], ids=["a small hash", "a large one"])
def test_many_resumed_types_continue_with_the_workers_heartbeats(fleet, number):
    types = [f"type-{each:03}" for each in range(number)]
    fleet.join("worker", *types, slots=len(types))
    fleet.scheduler.pause("*")
    for type_ in types:
        fleet.publish(f"job-of-{type_}", type_)
    fleet.scheduler.resume("*")
    at_once = len(fleet.claims("worker"))
    assert MAX_RESUMED / 2 < at_once <= MAX_RESUMED, "the call looks at some"
    fleet.sync("worker", slots=len(types))
    assert len(fleet.claims("worker")) == len(types)


def test_removed_rules_leave_no_data(fleet, redis_client):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    fleet.configure_and_tick({"limits": "type%3Apdf=1"})
    fleet.scheduler.pause("type:pdf", for_s=60)
    fleet.scheduler.resume("type:pdf")
    fleet.configure_and_tick({"limits": "", "reserve": "pdf:queued=2"})
    fleet.scheduler.configure({"reserve": ""})
    fleet.end("worker", *fleet.inbox("worker"))
    left = {name.decode().partition("}:")[2] for name in redis_client.scan_iter()}
    assert not {
        name
        for name in left
        if (name.startswith("lane:key") and not name.startswith("lane:key:metrics:"))
        or name in ("pause_ends", "pause_signs", "recount", "heads")
    }


def test_limit_changed_during_counting_keeps_the_type_closed(fleet):
    fleet.join("worker", "pdf", slots=4)
    for number in range(2):
        fleet.publish(f"before{number}", "pdf")
    assert len(fleet.jobs("worker")) == 2
    fleet.scheduler.configure({"limits": "type%3Apdf=1"})
    fleet.scheduler.configure({"limits": "type%3Apdf=2"})
    fleet.publish("after", "pdf")
    assert fleet.jobs("worker") == []
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == []
