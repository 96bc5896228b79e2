"""The work of one invocation is bounded for any number of calls in a batch: it is deleted and requeued in parts."""

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.options.recurring import RecurringCall
from celery_affinity.schema.constants import MAX_BYTES, MAX_FORGOTTEN, MAX_MOVES, MAX_SHARED
from celery_affinity.schema.keys import Keys

from ..support.counting import Counting
from ..support.scripted_fleet import ScriptedFleet

RULES = "merge=city most=100000 bytes=100000000"
CALLS = 450

#: Commands of an invocation that takes well below 5 ms: a command takes 2 to 4 µs.
MAX_COMMANDS = 1_200


class Clocked(Counting, FakeClockScheduler):
    """Counts the commands of each invocation, and has a fake clock."""


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Clocked(redis_client, Keys()))


def publish(fleet, number=CALLS, first=0, **fields):
    ids = [f"a{first + nth}+" for nth in range(number)]
    for page in range(0, number, 25):
        fleet.scheduler.publish(
            *fleet.made(ids[page : page + 25], "pdf", task_name="tests.task", rules=RULES, **fields)
        )
    return ids


def dead(fleet, number=CALLS, **fields):
    """Let a batch of *number* calls become a dead letter. Return the ids of the calls."""
    ids = publish(fleet, number, **fields)
    batch = fleet.join_and_claim("worker", "pdf")
    fleet.end("worker", batch, outcome="rejected")
    fleet.scheduler.calls.clear()
    return ids


def report_all(fleet):
    """Report all ends like a dispatcher. Return the ids of the reported jobs, by outcome."""
    found = {}
    while ending := fleet.scheduler.next_report("app", again_s=5):
        after = 0
        while after is not None:
            page = fleet.scheduler.batch_calls(ending.job_id, after=after)
            after = page.after
            found.setdefault(ending.how, []).extend(each.job_id for each in page.callers)
            fleet.scheduler.ack_batch_reports(ending.job_id, [each.job_id for each in page.callers])
        fleet.scheduler.ack_report([ending.job_id])
    return found


def rows(fleet):
    return [*fleet.scheduler.client.scan_iter("*job:a*"), *fleet.scheduler.client.scan_iter("*:callers:*")]


def test_purged_batch_is_deleted_in_parts_without_reports(fleet):
    publish(fleet)
    fleet.scheduler.calls.clear()
    assert fleet.scheduler.purge("pdf") == 1
    assert len(rows(fleet)) == CALLS - MAX_FORGOTTEN + 1
    assert report_all(fleet) == {"deleted": []}
    assert rows(fleet) == []
    assert not fleet.scheduler.client.keys("*message:*") + fleet.scheduler.client.keys("*task:*")
    assert fleet.scheduler.most() < MAX_COMMANDS


def test_many_batches_are_purged_in_parts(fleet):
    for nth in range(30):
        rules = RULES.replace("city", f"city{nth}")
        ids = [f"b{nth}-{call}+" for call in range(MAX_FORGOTTEN)]
        fleet.scheduler.publish(*fleet.made(ids, "pdf", task_name="tests.task", rules=rules))
    fleet.scheduler.calls.clear()
    assert fleet.scheduler.purge("pdf") == 30
    assert fleet.scheduler.most() < MAX_COMMANDS
    assert not fleet.scheduler.client.keys("*job:*")


def test_many_jobs_with_keys_are_purged_in_parts(fleet):
    ids = [f"k{nth}!" for nth in range(60)]
    for nth, job in enumerate(ids):
        fleet.publish(job, "pdf", rules=f"key=k{nth} limit=1")
    fleet.scheduler.calls.clear()
    assert fleet.scheduler.purge("pdf") == 60
    assert len(fleet.scheduler.calls) >= 3
    assert not fleet.scheduler.client.keys("*job:*") + fleet.scheduler.client.keys("*lane:*")


def test_calls_that_postpone_recurring_calls_are_purged_in_parts(fleet):
    """Each of 60 calls postpones twenty recurring calls, which are due earlier if the job is deleted."""
    recurring = [
        RecurringCall(f"r{nth}", "plan", "pdf", f"k{nth // 20}", 1_000_000, signature="x") for nth in range(1200)
    ]
    fleet.scheduler.declare_recurring(recurring, app="shop")
    for nth in range(60):
        rules = f"merge=k{nth} most=9 bytes=9999"
        fleet.scheduler.publish(*fleet.made([f"c{nth}+"], "pdf", task_name="plan", rules=rules))
    fleet.scheduler.calls.clear()
    assert fleet.scheduler.purge("pdf") == 60
    assert fleet.scheduler.most() < MAX_COMMANDS
    assert not fleet.scheduler.client.keys("*job:*")


def test_dropped_dead_batch_is_deleted_once_reported(fleet):
    ids = dead(fleet)
    assert fleet.scheduler.drop(["a0*", "a0*"]) == 1, "named twice, it is one"
    assert not fleet.scheduler.client.exists(Keys().key("dead"))
    assert report_all(fleet)["rejected"] == ids[1:]
    assert rows(fleet) == []
    assert fleet.scheduler.most() < MAX_COMMANDS


def test_reported_dead_batch_is_dropped_in_parts_for_good(fleet):
    dead(fleet)
    report_all(fleet)
    assert fleet.scheduler.drop(["a0*"]) == 1
    assert len(rows(fleet)) == CALLS - MAX_FORGOTTEN + 1
    assert fleet.scheduler.replay(["a0*"]) == []
    assert fleet.scheduler.drop(["a0*"]) == 0
    assert report_all(fleet) == {"deleted": []}
    assert rows(fleet) == []
    assert fleet.scheduler.most() < MAX_COMMANDS


def test_excess_dead_batches_are_deleted_in_parts(fleet):
    fleet.scheduler.configure({"dead_max": "1"})
    dead(fleet)
    report_all(fleet)
    dead(fleet, 3, first=CALLS)
    assert fleet.scheduler.client.zrange(Keys().key("dead"), 0, -1) == [f"a{CALLS}*".encode()]
    assert len(rows(fleet)) > CALLS - MAX_FORGOTTEN
    report_all(fleet)
    left = {row.decode().rpartition(":")[2] for row in rows(fleet)}
    assert left == {f"a{CALLS}*", *(f"a{CALLS + nth}+" for nth in range(3))}
    assert fleet.scheduler.most() < MAX_COMMANDS


@pytest.mark.parametrize("knows", [True, False], ids=["callers know", "callers do not know"])
def test_replayed_dead_batch_is_requeued_in_parts(fleet, knows):
    ids = dead(fleet, expires_us=60_000_000)
    if knows:
        report_all(fleet)
    fleet.scheduler.calls.clear()
    fleet.scheduler.advance(120)
    assert fleet.scheduler.replay(["a0*"]) == ["a0*"]
    assert [name for name, *_ in fleet.scheduler.calls].count("replay") > CALLS / MAX_SHARED
    assert fleet.scheduler.most() < MAX_COMMANDS
    (again,) = fleet.inbox("worker")
    assert again.message == b"message of a0+", "none has expired"
    assert fleet.scheduler.client.zcard(Keys().key("callers", "a0*")) == len(ids)
    assert not fleet.scheduler.client.exists(Keys().key("reported_calls", "a0*"), Keys().key("expires"))


def test_interrupted_replay_is_continued_by_a_later_one(fleet):
    ids = dead(fleet)
    found = report_all(fleet)
    (left,) = fleet.scheduler._run("replay", ["a0*"])
    assert left == 1
    assert fleet.state("a0*") == "dead"
    assert len(found["rejected"]) == len(ids) - 1
    assert fleet.scheduler.replay(["a0*"]) == ["a0*"]
    assert fleet.scheduler.client.zcard(Keys().key("callers", "a0*")) == len(ids)


def test_page_of_callers_has_limited_message_bytes(fleet):
    half = MAX_BYTES * 6 // 10
    for number in range(4):
        fleet.publish(f"large{number}+", "pdf", rules=RULES, message="x" * half)
    batch = fleet.join_and_claim("worker", "pdf")
    page = fleet.scheduler.batch_calls(batch.job_id, fence=batch.fence, after=0)
    assert [each.job_id for each in page.callers] == ["large1+", "large2+"]
    page = fleet.scheduler.batch_calls(batch.job_id, fence=batch.fence, after=page.after)
    assert [each.job_id for each in page.callers] == ["large3+"]
    assert page.after is None


@pytest.mark.parametrize("has_key", [False, True])
def test_only_first_and_keyed_calls_store_rules(fleet, has_key):
    rules = f"{RULES} key=k limit=1" if has_key else RULES
    ids = [f"a{number:02}+{'!' if has_key else ''}" for number in range(MAX_MOVES + 2)]
    for each in ids:
        fleet.publish(each, "pdf", rules=rules)
    say = [fleet.scheduler.client.hexists(Keys().key("job", each), "rules") for each in ids]
    assert say == [True] * MAX_MOVES + [has_key] * 2
