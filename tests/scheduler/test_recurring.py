"""Recurring calls: they fire when no matching call became pending in time. The conformance test covers the rest."""

from contextlib import suppress

import pytest
import redis

from celery_affinity.errors import OptionError
from celery_affinity.options.recurring import RecurringCall
from celery_affinity.reports.recurring import recurring_rows
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.constants import MAX_ALIKE, MAX_RECHECKED, MAX_SIGNATURE, TICK_US
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys

from ..support.clocked import ClockedReader
from ..support.counting import Counting
from ..support.full_server import full_server

TASK = "proj.reroute"
RULES = "merge=HH most=1000 bytes=1000000"


def entry(name="hh", stale_s=300.0, **fields):
    given = {"task": TASK, "type": "route", "merge_key": "HH", "signature": '{"task": "proj.reroute"}'} | fields
    return RecurringCall(name, stale_after_us=round(stale_s * 1e6), **given)


def job(job_id, *, rules=RULES, type_="route", task_name=TASK, **fields):
    given = {"task_id": f"task-{job_id}"} | fields
    return NewJob(job_id, type_, f"message of {job_id}", task_name=task_name, rules=rules, **given)


def rows(fleet):
    return {row.name: row for row in recurring_rows(ClockedReader(fleet.scheduler))}


def fires_in_s(fleet, name="hh"):
    return rows(fleet)[name].fires_in_s


def run(fleet, *ids):
    """Publish calls that merge, if there are several, and join a worker. Return the claim of their run."""
    fleet.scheduler.publish(*map(job, ids))
    return fleet.join_and_claim("worker", "route")


def fire(fleet, job_id, **fields):
    """Fire the due call like a dispatcher."""
    due = fleet.scheduler.due_recurring("shop", again_s=10)
    return due and fleet.scheduler.fire_recurring(due.name, due.due, job(job_id, **fields))


def test_call_is_due_after_an_interval_without_matches(fleet):
    assert fleet.scheduler.declare_recurring([entry()]) == []
    assert fires_in_s(fleet) == 300
    fleet.scheduler.advance(299.9)
    ticked = fleet.scheduler.tick()
    assert (ticked.recurring, ticked.next_due_s) == (False, pytest.approx(0.1))
    assert fleet.scheduler.due_recurring("shop", again_s=10) is None
    fleet.scheduler.advance(0.1)
    assert fleet.scheduler.tick().recurring
    due = fleet.scheduler.due_recurring("shop", again_s=10)
    assert (due.name, due.task, due.signature) == ("hh", TASK, '{"task": "proj.reroute"}')
    published = fleet.scheduler.fire_recurring(due.name, due.due, job("firing+"))
    assert (published.fresh, published.served) == (True, False)
    assert fleet.state("firing+") == "pending"
    assert fleet.scheduler.client.hget(fleet.scheduler.keys.key("job", "firing+"), "recurring") == b"hh"
    assert fires_in_s(fleet) == 300


@pytest.mark.parametrize("how", ["pending", "merged", "due", "from a list"])
def test_matching_call_postpones_it_when_it_becomes_pending(fleet, how):
    scheduler = fleet.scheduler
    scheduler.declare_recurring([entry()])
    if how == "merged":
        scheduler.publish(job("first+"))
    if how == "due":
        scheduler.publish(job("call+", delay_us=100_000_000))
    scheduler.advance(100)
    assert fires_in_s(fleet) == 200
    if how == "due":
        scheduler.tick()
    elif how == "from a list":
        scheduler.client.lpush("route", "message of call+")
        scheduler.ingest("route", [job("call+")])
    else:
        scheduler.publish(job("call+"))
    row = rows(fleet)["hh"]
    assert (row.fires_in_s, row.matched_ago_s, row.matched_by) == (300, 0, "task-call+")


@pytest.mark.parametrize(
    ("job_id", "fields", "left_s"),
    [
        ("call+", {"task_name": "proj.other"}, 200),
        ("call+", {"type_": "other"}, 200),
        ("call+", {"rules": RULES.replace("HH", "B")}, 200),
        ("call", {"rules": ""}, 200),
        ("call!", {"rules": "key=HH limit=1"}, 200),
        ("call+!", {"rules": f"{RULES} key=k limit=1"}, 300),
    ],
)
def test_only_matching_task_type_and_merge_key_postpone(fleet, job_id, fields, left_s):
    fleet.scheduler.declare_recurring([entry()])
    fleet.scheduler.advance(100)
    fleet.scheduler.publish(job(job_id, **fields))
    assert fires_in_s(fleet) == left_s


@pytest.mark.parametrize("delay_us", [0, 60_000_000])
def test_retry_postpones_no_recurring_call(fleet, delay_us):
    """A retry is published before its run ends, and usually becomes due much later."""
    fleet.scheduler.declare_recurring([entry()])
    claim = run(fleet, "call+")
    fleet.scheduler.advance(100)
    fleet.scheduler.publish(job("retry+", task_id="task-call+", delay_us=delay_us))
    fleet.end("worker", claim)
    fleet.advance_and_tick(delay_us / 1e6)
    assert fleet.state("retry+") in ("pending", "claimed")
    assert fires_in_s(fleet) == 200 - delay_us / 1e6


def test_returned_job_postpones_nothing(fleet):
    fleet.scheduler.declare_recurring([entry()])
    claim = run(fleet, "call+")
    fleet.scheduler.advance(100)
    fleet.end("worker", claim, outcome="returned")
    assert fires_in_s(fleet) == 200


def test_many_dispatchers_make_one_job_per_firing(fleet):
    scheduler = fleet.scheduler
    scheduler.declare_recurring([entry()])
    scheduler.advance(300)
    due = scheduler.due_recurring("shop", again_s=10)
    assert scheduler.due_recurring("shop", again_s=10) is None
    scheduler.advance(10)
    assert scheduler.due_recurring("shop", again_s=10) == due, "nobody made it"
    assert scheduler.fire_recurring(due.name, due.due, job("a+")).fresh
    assert scheduler.fire_recurring(due.name, due.due, job("b+")) is None
    assert fleet.state("b+") is None


def test_matching_call_in_between_cancels_a_firing(fleet):
    scheduler = fleet.scheduler
    scheduler.declare_recurring([entry()])
    scheduler.advance(300)
    due = scheduler.due_recurring("shop", again_s=10)
    scheduler.publish(job("call+"))
    assert scheduler.fire_recurring(due.name, due.due, job("firing+")) is None
    assert scheduler.due_recurring("shop", again_s=10) is None


def test_firing_with_another_key_sets_the_next_time_too(fleet):
    fleet.scheduler.declare_recurring([entry()])
    fleet.scheduler.advance(301)
    assert fire(fleet, "firing", rules="").fresh
    assert (fires_in_s(fleet), rows(fleet)["hh"].matched_ago_s) == (300, None)


def test_outage_is_followed_by_one_firing(fleet):
    fleet.scheduler.declare_recurring([entry(stale_s=1)])
    fleet.scheduler.advance(3_600)
    assert fire(fleet, "firing+").fresh
    assert fire(fleet, "again+") is None


def test_firings_and_postponements_are_counted(fleet):
    fleet.scheduler.declare_recurring([entry(), entry("also hh", stale_s=500)])
    fleet.scheduler.publish(job("call+"))
    fleet.scheduler.advance(300)
    fire(fleet, "firing+")
    counters = ClockedReader(fleet.scheduler).hash("counters")
    assert (counters["recurring_fired"], counters["recurring_reset"]) == ("1", "3")


def test_app_declines_an_unknown_call_for_a_while(fleet):
    scheduler = fleet.scheduler
    scheduler.declare_recurring([entry()])
    scheduler.advance(300)
    due = scheduler.due_recurring("shop", again_s=10)
    scheduler.decline_recurring("shop", "hh")
    assert scheduler.due_recurring("shop", again_s=10) is None
    assert scheduler.due_recurring("an other: app", again_s=10) == due
    scheduler.decline_recurring("an other: app", "hh")
    assert scheduler.due_recurring("shop", again_s=10) is scheduler.due_recurring("an other: app", again_s=10) is None
    scheduler.advance(15)
    assert scheduler.due_recurring("shop", again_s=10) == due


def test_operator_fires_a_call_at_any_time(fleet):
    fleet.scheduler.declare_recurring([entry()])
    fleet.scheduler.pause_recurring("hh", True)
    fleet.scheduler.advance(100)
    assert fleet.scheduler.fire_recurring("hh", "", job("by-hand+")).fresh
    assert rows(fleet)["hh"].is_suspended
    fleet.scheduler.pause_recurring("hh", False)
    assert fires_in_s(fleet) == 300
    assert fleet.scheduler.fire_recurring("nobody's", "", job("nothing+")) is None


def test_suspended_call_is_never_due_and_later_due_once(fleet):
    scheduler = fleet.scheduler
    scheduler.declare_recurring([entry()])
    assert scheduler.pause_recurring("hh", True)
    assert not scheduler.pause_recurring("nobody's", True)
    scheduler.advance(100_000)
    ticked = scheduler.tick()
    assert (ticked.recurring, ticked.next_due_s, scheduler.due_recurring("shop", again_s=10)) == (False, None, None)
    assert fires_in_s(fleet) is None
    assert scheduler.pause_recurring("hh", False)
    assert scheduler.tick().recurring
    assert fire(fleet, "firing+").fresh
    assert fire(fleet, "again+") is None


@pytest.mark.parametrize("change", ["goes on", "another interval"])
def test_changed_call_whose_time_is_past_is_due_now(fleet, redis_client, change):
    scheduler = fleet.scheduler
    scheduler.declare_recurring([entry(stale_s=300)])
    if change == "goes on":
        scheduler.pause_recurring("hh", True)
        scheduler.advance(400)
        scheduler.pause_recurring("hh", False)
    else:
        scheduler.advance(200)
        scheduler.declare_recurring([entry(stale_s=100)])
    assert redis_client.zscore(scheduler.keys.key("recurring"), "hh") == fleet.now_us


def test_call_suspended_after_the_handout_is_not_made(fleet):
    fleet.scheduler.declare_recurring([entry()])
    fleet.scheduler.advance(300)
    due = fleet.scheduler.due_recurring("shop", again_s=10)
    fleet.scheduler.pause_recurring("hh", True)
    assert fleet.scheduler.fire_recurring(due.name, due.due, job("firing+")) is None


# -- since the end of a run


def ends(fleet, outcome):
    fleet.scheduler.declare_recurring([entry(since="end")])
    fleet.scheduler.advance(10)
    claim = run(fleet, "call+")
    fleet.scheduler.advance(100)
    fleet.end("worker", claim, outcome=outcome)
    return fires_in_s(fleet)


def test_successful_run_postpones_a_call_since_end(fleet):
    assert ends(fleet, "acked") == 300
    assert rows(fleet)["hh"].matched_by == "task-call+"


@pytest.mark.parametrize("outcome", ["failed ValueError", "rejected", "revoked", "expired", "unsettled", "returned"])
def test_other_ends_do_not_postpone_a_call_since_end(fleet, outcome):
    assert ends(fleet, outcome) == 190


def test_lost_early_acked_run_postpones_nothing(fleet):
    fleet.scheduler.declare_recurring([entry(since="end")])
    claim = run(fleet, "call+")
    fleet.scheduler.release_and_claim("worker", acks=[claim[:2]], ends=[], sequence=50, inline=False)
    fleet.scheduler.advance(100)
    fleet.end("worker", claim, outcome="unsettled")
    assert fires_in_s(fleet) == 200


def test_retried_run_has_not_ended(fleet):
    fleet.scheduler.declare_recurring([entry(since="end")])
    claim = run(fleet, "call+")
    fleet.scheduler.advance(100)
    fleet.scheduler.publish(job("retry+", task_id="task-call+"))
    (claim,) = fleet.end("worker", claim)
    assert fires_in_s(fleet) == 200
    fleet.end("worker", claim)
    assert fires_in_s(fleet) == 300


@pytest.mark.parametrize(
    ("outcome", "lost_fields", "left_s"), [("acked", [], 300), ("failed", [], 200), ("acked", ["primary", "task"], 200)]
)
def test_end_of_a_merged_run_with_known_primary_counts(fleet, outcome, lost_fields, left_s):
    fleet.scheduler.declare_recurring([entry(since="end")])
    claim = run(fleet, "a+", "b+")
    for field in lost_fields:
        fleet.scheduler.client.hdel(fleet.scheduler.keys.key("job", claim.job_id), field)
    fleet.scheduler.advance(100)
    fleet.end("worker", claim, outcome=outcome)
    assert fires_in_s(fleet) == left_s


def test_firing_counts_from_its_publish_even_if_it_fails(fleet):
    fleet.scheduler.declare_recurring([entry(since="end")])
    fleet.join("worker", "route")
    fleet.scheduler.advance(300)
    fire(fleet, "firing+")
    (claim,) = fleet.inbox("worker")
    fleet.end("worker", claim, outcome="failed")
    assert fires_in_s(fleet) == 300


@pytest.mark.parametrize("outcome", ["acked", "failed ValueError"])
def test_call_since_end_is_not_fired_during_its_run(fleet, outcome):
    fleet.scheduler.declare_recurring([entry(since="end")])
    fleet.join("worker", "route")
    fleet.scheduler.advance(300)
    fire(fleet, "firing+")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.advance(400)
    assert fire(fleet, "early+") is None
    fleet.end("worker", claim, outcome=outcome)
    if outcome == "acked":
        assert fires_in_s(fleet) == 300
    else:
        fleet.scheduler.advance(TICK_US / 1e6)
        assert fire(fleet, "again+").fresh


def test_call_since_enqueue_is_fired_during_its_run(fleet):
    fleet.scheduler.declare_recurring([entry()])
    fleet.join("worker", "route")
    for number in range(2):
        fleet.scheduler.advance(300)
        assert fire(fleet, f"firing-{number}+").fresh


# -- calls that end without a run


@pytest.mark.parametrize("how", ["revoked", "expired", "purged", "expired at the claim"])
@pytest.mark.parametrize("calls", [1, 2])
def test_calls_that_end_unstarted_have_postponed_nothing(fleet, how, calls):
    scheduler = fleet.scheduler
    scheduler.declare_recurring([entry()])
    scheduler.publish(job("a+", expires_us=150_000_000))
    scheduler.advance(100)
    if calls == 2:
        scheduler.publish(job("b+", expires_us=50_000_000))
    assert fires_in_s(fleet) == (300 if calls == 2 else 200)
    scheduler.advance(50)
    if how == "revoked":
        scheduler.revoke(["task-a+"], [], keep_s=60)
        assert fires_in_s(fleet) == (250 if calls == 2 else 150), "the other one waits still"
        scheduler.revoke(["task-b+"], [], keep_s=60)
    elif how == "expired":
        scheduler.tick()
    elif how == "purged":
        scheduler.purge("route")
    else:
        fleet.join("worker", "route")
    assert fires_in_s(fleet) == 150


@pytest.mark.parametrize("how", ["revoked", "purged"])
def test_collecting_calls_that_end_have_postponed_nothing(fleet, how):
    patient = f"{RULES} wait=200000000/200000000"
    fleet.scheduler.declare_recurring([entry()])
    fleet.scheduler.publish(job("a+", rules=patient))
    fleet.scheduler.advance(100)
    fleet.scheduler.publish(job("b+", rules=patient))
    assert fires_in_s(fleet) == 300
    if how == "revoked":
        fleet.scheduler.revoke(["task-a+", "task-b+"], [], keep_s=60)
    else:
        fleet.scheduler.purge("route")
    assert fires_in_s(fleet) == 200


def test_revoked_single_collecting_call_has_postponed_nothing(fleet):
    patient = f"{RULES} wait=200000000/200000000"
    fleet.scheduler.declare_recurring([entry()])
    fleet.scheduler.publish(job("a+", rules=patient))
    fleet.scheduler.advance(100)
    fleet.scheduler.publish(job("b+!", rules=f"{patient} key=k limit=1"))
    fleet.scheduler.revoke(["task-a+"], [], keep_s=60)
    assert fires_in_s(fleet) == 200


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_job_that_ends_on_its_return_has_postponed_nothing(fleet, how):
    fleet.scheduler.declare_recurring([entry()])
    fleet.scheduler.publish(job("a+", expires_us=50_000_000 if how == "expired" else None))
    claim = fleet.join_and_claim("worker", "route")
    fleet.scheduler.advance(100)
    fleet.scheduler.publish(job("b+"))
    assert fires_in_s(fleet) == 300
    if how == "revoked":
        fleet.scheduler.revoke(["task-a+"], [], keep_s=60)
    fleet.end("worker", claim, outcome="returned")
    assert (fleet.state("a+"), fires_in_s(fleet)) == (how, 200)


def test_deleted_firing_is_repeated_soon_with_a_new_id(fleet):
    scheduler = fleet.scheduler
    scheduler.declare_recurring([entry()])
    scheduler.publish(job("a+"))
    scheduler.advance(300)
    first = scheduler.due_recurring("shop", again_s=10)
    assert scheduler.fire_recurring(first.name, first.due, job("firing+")).merged
    scheduler.advance(10)
    scheduler.purge("route")
    scheduler.advance(0.1)
    again = scheduler.due_recurring("shop", again_s=10)
    assert again.due != first.due, "a job of the first one may be known still"


# -- declarations


def test_app_configuration_declares_all_calls_of_its_app(fleet):
    scheduler = fleet.scheduler
    scheduler.declare_recurring([entry("a"), entry("b")], app="shop")
    scheduler.declare_recurring([entry("at run time")])
    assert set(rows(fleet)) == {"a", "b", "at run time"}
    scheduler.declare_recurring([entry("b"), entry("an ö: c")], app="shop")
    assert {name: row.app for name, row in rows(fleet).items()} == {"b": "shop", "an ö: c": "shop", "at run time": ""}
    scheduler.declare_recurring([], app="shop")
    assert set(rows(fleet)) == {"at run time"}
    assert scheduler.remove_recurring("at run time")
    assert not scheduler.remove_recurring("at run time")
    assert not scheduler.client.keys("*recur*")


def test_latest_declaration_wins_and_conflicts_are_reported(fleet):
    scheduler = fleet.scheduler
    assert scheduler.declare_recurring([entry()], app="shop") == []
    assert scheduler.declare_recurring([entry(stale_s=60)]) == ["hh"]
    assert scheduler.declare_recurring([entry()], app="shop") == [], "the declaration has not changed"
    assert rows(fleet)["hh"].stale_after_s == 60
    assert scheduler.declare_recurring([entry(stale_s=90)], app="shop") == ["hh"]
    assert scheduler.declare_recurring([entry(stale_s=120)], app="another") == ["hh"]
    scheduler.declare_recurring([], app="shop")
    assert (rows(fleet)["hh"].app, rows(fleet)["hh"].stale_after_s) == ("another", 120)
    scheduler.remove_recurring("hh")
    scheduler.declare_recurring([entry(stale_s=120)], app="another")
    assert not rows(fleet), "a person has stopped it"
    scheduler.declare_recurring([entry(stale_s=121)], app="another")
    assert rows(fleet)["hh"].stale_after_s == 121


def test_equal_declaration_of_another_app_replaces_nothing(fleet):
    fleet.scheduler.declare_recurring([entry()], app="shop")
    assert fleet.scheduler.declare_recurring([entry()], app="another") == []


def test_handed_out_call_stays_handed_out_after_changes(fleet):
    scheduler = fleet.scheduler
    scheduler.declare_recurring([entry()])
    scheduler.advance(301)
    assert scheduler.due_recurring("shop", again_s=10)
    scheduler.declare_recurring([entry(signature='{"task": "proj.reroute", "args": [1]}')])
    assert scheduler.due_recurring("shop", again_s=10) is None


def test_new_interval_counts_from_the_last_match(fleet):
    scheduler = fleet.scheduler
    scheduler.declare_recurring([entry()])
    scheduler.advance(10)
    scheduler.publish(job("call+"))
    scheduler.advance(100)
    scheduler.declare_recurring([entry(stale_s=200)])
    assert fires_in_s(fleet) == 100
    scheduler.declare_recurring([entry(stale_s=200, signature="another")])
    assert fires_in_s(fleet) == 100
    scheduler.declare_recurring([entry(stale_s=50)])
    assert fires_in_s(fleet) == 0, "not before now"
    scheduler.declare_recurring([entry(stale_s=50, merge_key="B")])
    row = rows(fleet)["hh"]
    assert (row.fires_in_s, row.matched_ago_s) == (50, None)
    scheduler.publish(job("other+"))
    assert rows(fleet)["hh"].matched_ago_s is None


def test_suspended_call_stays_suspended_after_a_declaration(fleet):
    fleet.scheduler.declare_recurring([entry()], app="shop")
    fleet.scheduler.pause_recurring("hh", True)
    fleet.scheduler.declare_recurring([entry(stale_s=60, merge_key="B")], app="shop")
    assert rows(fleet)["hh"].is_suspended
    assert not fleet.scheduler.reader.has_due()


def test_number_of_calls_with_equal_matches_is_limited(fleet):
    fleet.scheduler.declare_recurring([entry(str(number)) for number in range(MAX_ALIKE)])
    with pytest.raises(OptionError, match=rf"among the first {MAX_ALIKE} that match .*, got also: 'one more'"):
        fleet.scheduler.declare_recurring([entry("one more")])
    fleet.scheduler.declare_recurring([entry("another key", merge_key="B"), entry("0", stale_s=9)])
    assert len(rows(fleet)) == MAX_ALIKE + 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "", "name of a recurring call must be a text of up to 255"),
        ("name", "n" * 256, "name of a recurring call"),
        ("task", b"task", "task of a recurring call must be the name of a task"),
        ("task", "\ud800", "task of a recurring call"),
        ("type", "", "type of a recurring call"),
        ("merge_key", "a b", "merge key of a recurring call must be 1 to 255 characters, percent-encoded"),
        ("merge_key", "", "merge key of a recurring call"),
        ("stale_after_us", 999_999, "stale_after_us of a recurring call must be µs, 1,000,000 or more, got: 999999"),
        ("stale_after_us", 1e9, "stale_after_us of a recurring call"),
        ("stale_after_us", True, "stale_after_us of a recurring call"),
        ("since", "start", "since of a recurring call must be 'enqueue' or 'end', got: 'start'"),
        ("signature", "x" * (MAX_SIGNATURE + 1), "signature of a recurring call must be at most 100,000 bytes"),
        ("signature", "\udc00", "signature of a recurring call must be a text in UTF-8"),
    ],
)
def test_invalid_field_of_a_recurring_call_is_refused(field, value, message):
    fields = {"name": "hh", "task": TASK, "type": "route", "merge_key": "HH", "stale_after_us": 1_000_000}
    with pytest.raises(OptionError, match=message):
        RecurringCall(**(fields | {field: value}))


# -- the server


def test_full_server_refuses_a_firing_without_changes(fleet, redis_client):
    fleet.scheduler.declare_recurring([entry()])
    fleet.scheduler.advance(300)
    due = fleet.scheduler.due_recurring("shop", again_s=1)
    before = rows(fleet)
    with full_server(redis_client), suppress(redis.OutOfMemoryError, redis.ResponseError):
        fleet.scheduler.fire_recurring(due.name, due.due, job("firing+"))
        pytest.fail("it is full")
    assert (rows(fleet), fleet.state("firing+")) == (before, None)
    assert fleet.scheduler.fire_recurring(due.name, due.due, job("firing+")).fresh


def test_user_without_message_access_sees_no_signature(fleet, redis_client):
    fleet.scheduler.declare_recurring([entry()])
    lane = fleet.scheduler.keys.key("lane", "*", "*").rpartition("lane")[0] + "lane:*"
    rights = f"on >secret resetkeys -@all %R~{lane} +zrange +hmget +get +time".split()
    redis_client.execute_command("ACL", "SETUSER", "looks", *rights)
    login = {"username": "looks", "password": "secret"}
    pool = redis.ConnectionPool(**redis_client.connection_pool.connection_kwargs | login)
    try:
        with redis.Redis(connection_pool=pool) as client:
            (row,) = recurring_rows(Reader(client, Keys()))
    finally:
        redis_client.execute_command("ACL", "DELUSER", "looks")
    assert (row.name, row.signature) == ("hh", "")


def test_clock_reset_delays_no_call(fleet):
    scheduler = fleet.scheduler
    calls = [entry(f"{number}", stale_s=100 + number, merge_key=f"k{number}") for number in range(2 * MAX_RECHECKED)]
    scheduler.declare_recurring(calls)
    scheduler.pause_recurring("7", True)
    scheduler.tick()
    scheduler.advance(-100_000)
    scheduler.tick()
    key = scheduler.keys.key("recurring")
    assert dict(scheduler.client.zrange(key, 0, 0, withscores=True)) == {b"0": scheduler.now_us + 100_000_000}
    assert scheduler.client.zscore(key, "7") == float("inf")
    found = rows(fleet)
    assert {name: row.fires_in_s for name, row in found.items() if name != "7"} == {
        f"{number}": 100 + number for number in range(2 * MAX_RECHECKED) if number != 7
    }
    scheduler.pause_recurring("7", False)
    assert fires_in_s(fleet, "7") == 107


def test_declarations_add_no_commands_to_other_publishes(redis_client):
    found = []
    for declared in ([], [entry("other", merge_key="B")]):
        redis_client.flushall()
        counting = Counting(redis_client, Keys())
        counting.declare_recurring(declared)
        counting.calls.clear()
        counting.publish(NewJob("plain", "route", "m", task_id="t", task_name=TASK))
        counting.publish(job("call+"))
        found.append([sum(times.values()) for _, times, _ in counting.calls])
    assert found[0] == found[1]


def test_corrupt_calls_are_skipped_and_repaired(fleet, redis_client):
    fleet.scheduler.declare_recurring([entry("good"), entry("bad"), entry("gone")])
    key = fleet.scheduler.keys.key
    redis_client.hset(key("recurring_call", "bad"), "stale", "x")
    redis_client.delete(key("recurring_call", "gone"))
    redis_client.zadd(key("recurring"), {b"\xff": 0})
    assert set(rows(fleet)) == {"good"}
    assert fleet.scheduler.reader.has_due()
    fleet.scheduler.repair()
    assert not fleet.scheduler.reader.has_due()
    assert redis_client.zrange(key("recurring"), 0, -1) == [b"good"]
    assert list(redis_client.hgetall(key("recurring_matches")).values()) == [b"good"]


@pytest.mark.parametrize("lost", ["recurring", "recurring_matches"])
def test_lost_index_of_recurring_calls_is_repaired(fleet, redis_client, lost):
    fleet.scheduler.declare_recurring([entry(), entry("suspended", merge_key="B")])
    fleet.scheduler.pause_recurring("suspended", True)
    key = fleet.scheduler.keys.key(lost)
    before = redis_client.zrange(key, 0, -1, withscores=True) if lost == "recurring" else redis_client.hgetall(key)
    redis_client.delete(key)
    fleet.scheduler.repair()
    after = redis_client.zrange(key, 0, -1, withscores=True) if lost == "recurring" else redis_client.hgetall(key)
    assert after == before


@pytest.mark.parametrize("how", ["revoked", "purged"])
def test_job_that_ends_in_its_pause_has_postponed_nothing(fleet, how):
    fleet.scheduler.declare_recurring([entry()])
    fleet.scheduler.advance(100)
    (claim,) = fleet.end("worker", run(fleet, "a+"), outcome="requeued")
    fleet.end("worker", claim, outcome="requeued")
    assert fleet.state("a+") == "scheduled"
    fleet.scheduler.advance(0.5)
    fleet.scheduler.client.hset(fleet.scheduler.keys.key("recurring_call", "hh"), "due", fleet.scheduler.now_us + 10**9)
    if how == "revoked":
        fleet.scheduler.revoke(["task-a+"], [], keep_s=60)
    else:
        fleet.scheduler.purge("route")
    assert fires_in_s(fleet) == 299.5
