"""Key rules on a server: cases that the random steps of conformance reach too rarely."""

import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.constants import MAX_BYTES, MAX_KEYS, MAX_MOVES
from celery_affinity.schema.keys import Keys
from celery_affinity.schema.values import encode_part
from celery_affinity.settings.limits import encoded_limits, limit_set

from ..support.keys_left import keys_of_rules
from ..support.processes import wait_until
from ..support.scripted_fleet import ScriptedFleet

ORDERED = "key=o limit=1 order=1"


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


@pytest.fixture
def kept(fleet):
    """Reserve key "o" for job "retry!", on a fleet whose free slot fits no job before the key admits it."""
    fleet.join("worker", "pdf")
    fleet.publish("try!", "pdf", task_id="task", rules=ORDERED)
    (claim,) = fleet.inbox("worker")
    fleet.publish("retry!", "pdf", task_id="task", rules=ORDERED, delay_s=0.000001)
    fleet.publish("other!", "pdf", rules=ORDERED)
    assert fleet.end("worker", claim) == []


def test_next_tick_fills_slots_after_a_reserved_retry_starts(fleet, kept):
    fleet.publish("excel!", "excel", rules=ORDERED)
    fleet.scheduler.configure({"limits": "o=2"})
    fleet.join("both", "pdf", "excel", slots=3)
    fleet.scheduler.tick()
    fleet.scheduler.tick()
    started = {*fleet.jobs("worker"), *fleet.jobs("both")}
    assert "retry!" in started
    assert len(started) == 2


def test_retry_starts_when_its_key_is_reserved(fleet):
    fleet.scheduler.configure({"limits": "o=2"})
    fleet.join("for excel", "excel")
    fleet.publish("excel!", "excel", task_id="task", rules=ORDERED)
    (claim,) = fleet.inbox("for excel")
    fleet.publish("pdf!", "pdf", task_id="task", rules=ORDERED)
    fleet.scheduler.requeue("for excel", [claim[:2]], counted=True)
    fleet.join("for pdf", "pdf")
    assert fleet.jobs("for excel") == []  # the next tick would fill its slot
    fleet.end("for pdf", *fleet.inbox("for pdf"))
    assert fleet.jobs("for excel") == ["excel!"]


@pytest.mark.parametrize("how", ["a pause", "a pause of all", "a limit of 0"])
def test_key_is_not_reserved_for_blocked_types_retry(fleet, how):
    fleet.join("worker", "pdf", "excel")
    fleet.publish("try!", "pdf", task_id="task", rules=ORDERED)
    (claim,) = fleet.inbox("worker")
    fleet.publish("retry!", "pdf", task_id="task", rules=ORDERED)
    fleet.publish("other!", "excel", rules=ORDERED)
    if how == "a limit of 0":
        fleet.configure_and_tick({"limits": "type%3Apdf=0"})
    else:
        fleet.scheduler.pause("type:pdf" if how == "a pause" else "*")
    ended = fleet.end("worker", claim)
    assert [each.job_id for each in ended] == ([] if how == "a pause of all" else ["other!"])
    assert fleet.scheduler.client.hget(Keys().key("key_state", "o"), "retry") is None


def test_recovered_loop_fills_no_type_that_only_it_serves(fleet, monkeypatch):
    """A release frees the key for two types, on a worker that counts as busy until this very invocation."""
    fleet.join("worker", "pdf", slots=30)
    fleet.publish("holder!", "pdf", rules="key=a limit=1")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.heartbeat("worker", loop_runs=False)
    for number in range(MAX_MOVES + 1):
        fleet.publish(f"pdf{number}", "pdf")
    fleet.publish("excel", "excel")
    for type_ in ("pdf", "excel"):
        fleet.publish(f"{type_}!", type_, rules="key=a limit=1")
    more = []
    monkeypatch.setattr(fleet.scheduler, "_fill_slots", more.append)
    assert len(fleet.end("worker", claim)) == MAX_MOVES
    assert more == [b"pdf "]


def test_scheduled_retry_causes_no_further_fills(fleet, monkeypatch):
    fleet.join("worker", "excel", slots=3)
    fleet.publish("try!", "excel", task_id="task", rules=ORDERED)
    for number in range(2):
        fleet.publish(f"excel{number}", "excel", message="x" * (MAX_BYTES + 1))
    assert len(fleet.claims("worker")) == 3
    fleet.publish("retry!", "pdf", task_id="task", rules=ORDERED, delay_s=60)
    fleet.publish("pdf", "pdf")
    fleet.join("other", "excel", slots=3)
    more = []
    monkeypatch.setattr(fleet.scheduler, "_fill_slots", more.append)
    fleet.scheduler.leave("worker")
    assert b"excel " in more
    assert b"pdf" not in b"".join(more)


@pytest.mark.parametrize("kept_for", ["a job that runs", "a retry that is not due yet"])
def test_key_limit_set_by_jobs_outlasts_waiting_jobs(fleet, kept_for):
    """No job waits for the key, so the server deletes only the data of waiting jobs."""
    fleet.join("worker", "pdf")
    fleet.publish("try!", "pdf", task_id="task", rules=ORDERED)
    (claim,) = fleet.inbox("worker")
    fleet.publish("other!", "pdf", task_id="other", rules=ORDERED)
    fleet.scheduler.revoke(["other"], [], keep_s=60)
    if kept_for == "a retry that is not due yet":
        fleet.publish("retry!", "pdf", task_id="task", rules=ORDERED, delay_s=60)
        fleet.end("worker", claim)
    assert fleet.scheduler.client.hget(Keys().key("key_state", "o"), "=tests.task") == b"1"


@pytest.mark.parametrize("how", ["a pause", "a limit of 0"])
def test_closed_key_blocks_its_retry_too(fleet, kept, how):
    def close(is_closed):
        if how == "a limit of 0":
            fleet.scheduler.configure({"limits": "o=0" if is_closed else ""})
        elif is_closed:
            fleet.scheduler.pause("key:o")
        else:
            fleet.scheduler.resume("key:o")

    close(True)
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == []
    close(False)
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == ["retry!"]


def test_job_starts_when_its_keys_pause_ends(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.join("worker", "pdf")
    fleet.publish("job!", "pdf", rules="key=k limit=1", delay_s=10)
    fleet.scheduler.pause("key:k", for_s=10)
    fleet.advance_and_tick(10)
    assert fleet.jobs("worker") == ["job!"]


TEXTS_WITH_STARS = st.text("ab:é*", min_size=1, max_size=4)


def applicable_pattern(limits, key):
    """Return the element of *limits* that applies to *key*: the name itself, or the longest matching pattern.

    Ties go to the pattern whose first star is furthest back, then to the first one by name.
    """
    if key in limits and "*" not in key:
        return key
    found = [each for each in limits if re.fullmatch(".*".join(map(re.escape, each.split("*"))), key)]
    found = [each for each in found if len(each) == max(map(len, found))]
    return min((each for each in found if each.find("*") == max(other.find("*") for other in found)), default=None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(st.dictionaries(TEXTS_WITH_STARS, st.integers(0, 4), max_size=6), TEXTS_WITH_STARS)
@example({"customer:*": 3, "customer:7": 0}, "customer:7")  # of equal length
@example({"customer:*": 3, "*customer:7": 2, "customer:7": 0}, "customer:7")
@example({"a*:": 1, "a:*": 2, "*a:": 3}, "a:")  # a colon takes three characters in Redis
@example({"é*": 1, "*ab": 2}, "éab")
@example({"a*b": 1, "a*c": 2, "a**": 3, "a*d": 4}, "abd")
def test_exact_name_wins_over_patterns_then_the_longest_wins(redis_client, limits, key):
    redis_client.flushdb()
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    in_redis = encoded_limits(limits)
    fleet.scheduler.configure({"limits": in_redis})
    fleet.join("worker", "pdf", slots=6)
    for number in range(6):
        fleet.publish(f"{number}!", "pdf", rules=f"key={encode_part(key)} limit=5")
    limit = limits.get(applicable_pattern(limits, key))
    assert len(fleet.jobs("worker")) == (5 if limit is None else limit)
    assert limit_set(encode_part(key), in_redis) == limit


@pytest.mark.parametrize("how", ["it runs", "it is revoked", "it expires", "it is purged", "its worker leaves"])
@pytest.mark.parametrize("rules", ["key=k limit=1", "key=k limit=3", ORDERED, "key=rate%3Ak rate=5/1000"])
def test_key_without_jobs_leaves_no_data(fleet, redis_client, how, rules):
    expires_s = 0.001 if how == "it expires" else None
    fleet.publish("job!", "pdf", rules=rules, task_id="task", expires_s=expires_s)
    assert redis_client.keys("*lane:key:*")
    if how == "it runs":
        fleet.join("worker", "pdf")
        fleet.end("worker", *fleet.inbox("worker"))
    elif how == "it is revoked":
        fleet.scheduler.revoke(["task"], [], keep_s=60)
    elif how == "it is purged":
        fleet.scheduler.purge("pdf")
    elif how == "its worker leaves":
        fleet.join("worker", "pdf")
        fleet.scheduler.leave("worker")
        fleet.scheduler.purge("pdf")
    wait_until(lambda: fleet.scheduler.tick() is not None and not keys_of_rules(redis_client), 5, "nothing is left")


def test_lowered_limit_blocks_keys_that_no_tick_has_reached(fleet):
    fleet.join("worker", "pdf")
    fleet.publish("running", "pdf")
    (claim,) = fleet.inbox("worker")
    keys = [f"many{number}" for number in range(MAX_KEYS + 10)]  # one invocation re-evaluates MAX_KEYS
    for key in keys:
        fleet.publish(f"{key}!", "pdf", rules=f"key={key} limit=1")
    fleet.scheduler.configure({"limits": "many*=0"})
    assert fleet.end("worker", claim) == []
    assert fleet.jobs("worker") == []
    fleet.configure_and_tick({"limits": ""})
    assert len(fleet.jobs("worker")) == 1


def test_key_reserved_for_a_retry_starts_no_turn(fleet):
    fleet.scheduler.configure({"limits": "o=2", "key_patience_us": "1"})
    fleet.join("pdf", "pdf")
    fleet.join("index", "index")
    fleet.publish("try!", "pdf", task_id="task", rules=ORDERED)
    fleet.publish("index!", "index", rules=ORDERED)
    (first,), (second,) = fleet.inbox("pdf"), fleet.inbox("index")
    fleet.join("video", "video")
    fleet.publish("video!", "video", rules=ORDERED)
    fleet.publish("retry!", "pdf", task_id="task", rules=ORDERED, delay_s=60)
    fleet.end("pdf", first)
    fleet.end("index", second)
    of_key = fleet.scheduler.client.hgetall(Keys().key("key_state", "o"))
    assert of_key[b"retry"] == b"retry!"
    assert not fleet.scheduler.repair(), "that is as it should be"
    assert b"turn" not in of_key


@pytest.mark.parametrize(("how", "other"), [("revoke", "pdf"), ("purge", "excel")])
def test_reservation_ends_when_the_scheduled_retry_is_deleted(fleet, how, other):
    fleet.join("worker", "pdf", "excel")
    fleet.publish("try!", "pdf", task_id="task", rules=ORDERED)
    fleet.publish("retry!", "pdf", task_id="task", rules=ORDERED, delay_s=60)
    fleet.publish("other!", other, task_id="other", rules=ORDERED)
    fleet.end("worker", *fleet.inbox("worker"))
    assert fleet.claims("worker") == {}
    if how == "revoke":
        fleet.scheduler.revoke(["task"], [], keep_s=60)
    else:
        assert fleet.scheduler.purge("pdf") == 1
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == ["other!"]
