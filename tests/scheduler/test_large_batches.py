"""The work of one call is bounded with any number of calls in a batch: it goes, and waits again, in parts."""

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.options.recurring import RecurringCall
from celery_affinity.schema.constants import MOST_BYTES, MOST_FORGOTTEN, MOST_MOVES, MOST_SHARED
from celery_affinity.schema.keys import Keys

from ..support.counting import Counting
from ..support.scripted_fleet import ScriptedFleet

RULES = "merge=city most=100000 bytes=100000000"
CALLS = 450

#: Commands of a call that takes well under 5 ms: a command takes 2 to 4 µs.
MOST_COMMANDS = 1_200


class Clocked(Counting, FakeClockScheduler):
    """Counts the commands of each call, and has a clock of its own."""


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
    """Have a batch of these calls be rejected. Return the ids of the calls."""
    ids = publish(fleet, number, **fields)
    fleet.join("worker", "pdf")
    (batch,) = fleet.inbox("worker")
    fleet.end("worker", batch, outcome="rejected")
    fleet.scheduler.calls.clear()
    return ids


def tell_all(fleet):
    """Tell all ends, as a dispatcher does. Return the ids of those that were told, by how."""
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


def test_a_batch_that_is_purged_goes_with_some_calls_and_the_others_follow_untold(fleet):
    publish(fleet)
    fleet.scheduler.calls.clear()
    assert fleet.scheduler.purge("pdf") == 1
    assert len(rows(fleet)) == CALLS - MOST_FORGOTTEN + 1
    assert tell_all(fleet) == {"deleted": []}
    assert rows(fleet) == []
    assert not fleet.scheduler.client.keys("*message:*") + fleet.scheduler.client.keys("*task:*")
    assert fleet.scheduler.most() < MOST_COMMANDS


def test_many_batches_are_purged_some_in_a_call(fleet):
    for nth in range(30):
        rules = RULES.replace("city", f"city{nth}")
        ids = [f"b{nth}-{call}+" for call in range(MOST_FORGOTTEN)]
        fleet.scheduler.publish(*fleet.made(ids, "pdf", task_name="tests.task", rules=rules))
    fleet.scheduler.calls.clear()
    assert fleet.scheduler.purge("pdf") == 30
    assert fleet.scheduler.most() < MOST_COMMANDS
    assert not fleet.scheduler.client.keys("*job:*")


def test_many_jobs_with_keys_are_purged_some_in_a_call(fleet):
    ids = [f"k{nth}!" for nth in range(60)]
    for nth, job in enumerate(ids):
        fleet.publish(job, "pdf", rules=f"key=k{nth} limit=1")
    fleet.scheduler.calls.clear()
    assert fleet.scheduler.purge("pdf") == 60
    assert len(fleet.scheduler.calls) >= 3
    assert not fleet.scheduler.client.keys("*job:*") + fleet.scheduler.client.keys("*lane:*")


def test_calls_that_put_many_recurring_calls_off_are_purged_some_in_a_call(fleet):
    """Each of 60 calls puts twenty recurring calls off, which are due earlier without that call."""
    recurring = [
        RecurringCall(f"r{nth}", "plan", "pdf", f"k{nth // 20}", 1_000_000, signature="x") for nth in range(1200)
    ]
    fleet.scheduler.declare_recurring(recurring, app="shop")
    for nth in range(60):
        rules = f"merge=k{nth} most=9 bytes=9999"
        fleet.scheduler.publish(*fleet.made([f"c{nth}+"], "pdf", task_name="plan", rules=rules))
    fleet.scheduler.calls.clear()
    assert fleet.scheduler.purge("pdf") == 60
    assert fleet.scheduler.most() < MOST_COMMANDS
    assert not fleet.scheduler.client.keys("*job:*")


def test_a_dead_batch_that_is_dropped_goes_when_its_callers_know(fleet):
    ids = dead(fleet)
    assert fleet.scheduler.drop(["a0*", "a0*"]) == 1, "named twice, it is one"
    assert not fleet.scheduler.client.exists(Keys().key("dead"))
    assert tell_all(fleet)["rejected"] == ids[1:]
    assert rows(fleet) == []
    assert fleet.scheduler.most() < MOST_COMMANDS


def test_a_dead_batch_whose_callers_know_is_dropped_in_parts_and_runs_no_more(fleet):
    dead(fleet)
    tell_all(fleet)
    assert fleet.scheduler.drop(["a0*"]) == 1
    assert len(rows(fleet)) == CALLS - MOST_FORGOTTEN + 1
    assert fleet.scheduler.replay(["a0*"]) == []
    assert fleet.scheduler.drop(["a0*"]) == 0
    assert tell_all(fleet) == {"deleted": []}
    assert rows(fleet) == []
    assert fleet.scheduler.most() < MOST_COMMANDS


def test_dead_batches_beyond_those_that_are_kept_go_in_parts(fleet):
    fleet.scheduler.configure({"dead_max": "1"})
    dead(fleet)
    tell_all(fleet)
    dead(fleet, 3, first=CALLS)
    assert fleet.scheduler.client.zrange(Keys().key("dead"), 0, -1) == [f"a{CALLS}*".encode()]
    assert len(rows(fleet)) > CALLS - MOST_FORGOTTEN
    tell_all(fleet)
    left = {row.decode().rpartition(":")[2] for row in rows(fleet)}
    assert left == {f"a{CALLS}*", *(f"a{CALLS + nth}+" for nth in range(3))}
    assert fleet.scheduler.most() < MOST_COMMANDS


@pytest.mark.parametrize("knows", [True, False], ids=["callers know", "callers do not know"])
def test_a_dead_batch_that_is_replayed_waits_again_in_parts_with_all_its_calls(fleet, knows):
    ids = dead(fleet, expires_us=60_000_000)
    if knows:
        tell_all(fleet)
    fleet.scheduler.calls.clear()
    fleet.scheduler.advance(120)
    assert fleet.scheduler.replay(["a0*"]) == ["a0*"]
    assert [name for name, *_ in fleet.scheduler.calls].count("replay") > CALLS / MOST_SHARED
    assert fleet.scheduler.most() < MOST_COMMANDS
    (again,) = fleet.inbox("worker")
    assert again.message == b"message of a0+", "none has expired"
    assert fleet.scheduler.client.zcard(Keys().key("callers", "a0*")) == len(ids)
    assert not fleet.scheduler.client.exists(Keys().key("reported_calls", "a0*"), Keys().key("expires"))


def test_a_replay_that_was_broken_off_leaves_a_dead_batch_that_a_later_one_goes_on_with(fleet):
    ids = dead(fleet)
    found = tell_all(fleet)
    (left,) = fleet.scheduler._run("replay", ["a0*"])
    assert left == 1
    assert fleet.state("a0*") == "dead"
    assert len(found["rejected"]) == len(ids) - 1
    assert fleet.scheduler.replay(["a0*"]) == ["a0*"]
    assert fleet.scheduler.client.zcard(Keys().key("callers", "a0*")) == len(ids)


def test_a_page_of_callers_has_some_mb_of_messages_at_most(fleet):
    half = MOST_BYTES * 6 // 10
    for number in range(4):
        fleet.publish(f"large{number}+", "pdf", rules=RULES, message="x" * half)
    fleet.join("worker", "pdf")
    (batch,) = fleet.inbox("worker")
    page = fleet.scheduler.batch_calls(batch.job_id, fence=batch.fence, after=0)
    assert [each.job_id for each in page.callers] == ["large1+", "large2+"]
    page = fleet.scheduler.batch_calls(batch.job_id, fence=batch.fence, after=page.after)
    assert [each.job_id for each in page.callers] == ["large3+"]
    assert page.after is None


@pytest.mark.parametrize("has_key", [False, True])
def test_the_first_calls_of_a_batch_say_their_rules_and_those_with_a_key_do(fleet, has_key):
    rules = f"{RULES} key=k limit=1" if has_key else RULES
    ids = [f"a{number:02}+{'!' if has_key else ''}" for number in range(MOST_MOVES + 2)]
    for each in ids:
        fleet.publish(each, "pdf", rules=rules)
    say = [fleet.scheduler.client.hexists(Keys().key("job", each), "rules") for each in ids]
    assert say == [True] * MOST_MOVES + [has_key] * 2
