"""A key that jobs of one type take continually is reserved, after a while, for another waiting type."""

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet

KEYED = "key=k limit=1"
PATIENCE_S = 30


@pytest.fixture
def fleet(redis_client):
    """A worker for videos, which hold the key, and a worker for reports that is busy whenever the key is free."""
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.scheduler.configure({"worker_timeout_us": "1000000000"})  # no worker here sends heartbeats
    fleet.join("videos", "video")
    fleet.join("reports", "report")
    for number in range(200):
        fleet.publish(f"video-{number}!", "video", rules=KEYED)
        fleet.publish(f"report-{number}", "report")
    fleet.publish("report!", "report", on_demand=True, rules=KEYED)
    return fleet


def play(fleet, seconds, *, order=("videos", "reports")):
    """Let both workers end one job per second, in turn. Return the second in which the report with the key began."""
    running = {worker: fleet.inbox(worker) for worker in order}
    for second in range(seconds):
        for worker in order:
            fleet.advance_and_tick(1 / len(order))
            running[worker] += fleet.inbox(worker)
            if running[worker]:
                running[worker] += fleet.end(worker, running[worker].pop(0))
        if any(claim.job_id == "report!" for claims in running.values() for claim in claims):
            return second
    return None


def patience(fleet, seconds):
    fleet.scheduler.configure({"key_patience_us": str(round(seconds * 1e6))})


def test_type_that_always_misses_the_key_gets_turns(fleet):
    assert PATIENCE_S - 2 <= play(fleet, 60) <= PATIENCE_S + 2


def test_type_never_gets_the_key_without_patience(fleet):
    patience(fleet, 0)
    assert play(fleet, 100) is None


def test_unused_turn_ends_and_other_types_continue(fleet):
    fleet.scheduler.advance(PATIENCE_S)
    (video,), (report,) = fleet.inbox("videos"), fleet.inbox("reports")
    assert fleet.end("videos", video) == [], "the key is kept for the report"
    fleet.advance_and_tick(PATIENCE_S - 1)
    assert fleet.jobs("videos") == []
    fleet.advance_and_tick(1)
    (video,) = fleet.inbox("videos")
    assert len(fleet.end("videos", video)) == 1, "the next turn comes after as long a wait"
    assert [each.job_id for each in fleet.end("reports", report)] != ["report!"]


def begin_turn(fleet):
    """Let a video end after the patience, so that the key is reserved for the report."""
    fleet.scheduler.advance(PATIENCE_S)
    (video,) = fleet.inbox("videos")
    assert fleet.end("videos", video) == []


@pytest.mark.parametrize("later_s", [1, -3600])
def test_turn_without_waiting_jobs_ends_at_the_tick(fleet, later_s):
    """Also if the clock was set back before that tick: otherwise the others would wait for the end of the turn."""
    begin_turn(fleet)
    fleet.scheduler.revoke(["task-report!"], [], keep_s=60)
    fleet.advance_and_tick(later_s)
    assert fleet.jobs("videos") == ["video-1!"]


def test_turn_ends_after_the_clock_was_set_back(fleet):
    begin_turn(fleet)
    fleet.scheduler.advance(-PATIENCE_S)
    fleet.publish("video!", "video", rules=KEYED)
    assert len(fleet.jobs("videos")) == 1


def test_repair_accepts_a_turn_after_a_clock_reset(fleet):
    begin_turn(fleet)
    fleet.advance_and_tick(-PATIENCE_S)
    assert fleet.jobs("videos") == [], "the tick comes to the key when the turn was to be over"
    first, found = 0, []
    while first >= 0:
        first, _, some = fleet.scheduler._run("repair", first=first, how=1)
        found += some
    assert found == []
    fleet.scheduler.tick()
    assert len(fleet.jobs("videos")) == 1


def test_repair_does_not_change_a_turn(fleet):
    begin_turn(fleet)
    key = fleet.scheduler.keys.key("due_keys")
    before = fleet.scheduler.client.zrange(key, 0, -1, withscores=True)
    assert before
    assert fleet.scheduler.repair() == []
    assert fleet.scheduler.client.zrange(key, 0, -1, withscores=True) == before


def test_unserved_or_paused_type_gets_no_turn(fleet):
    fleet.publish("lost!", "unserved", rules=KEYED)
    fleet.scheduler.pause("type:report")
    fleet.scheduler.advance(2 * PATIENCE_S)
    (video,) = fleet.inbox("videos")
    for _ in range(3):
        (video,) = fleet.end("videos", video)


def test_equal_waits_give_the_first_type_a_turn(fleet, redis_client):
    names = [f"type-{letter}" for letter in "hgfedcba"]
    fleet.join("others", *names)
    for name in names:
        fleet.publish(f"{name}!", name, rules=KEYED)
    fleet.scheduler.purge("report")
    fleet.scheduler.advance(PATIENCE_S)
    (video,) = fleet.inbox("videos")
    fleet.end("videos", video)
    assert fleet.jobs("others") == ["type-a!"]


def with_one_of_two_places_kept(fleet):
    """Reserve one of the key's two places for the report. Return the claim that has the other place."""
    fleet.scheduler.configure({"limits": "k=2"})
    fleet.join("videos 2", "video")
    fleet.scheduler.tick()
    fleet.scheduler.advance(PATIENCE_S)
    (video,), (other,) = fleet.inbox("videos"), fleet.inbox("videos 2")
    assert fleet.end("videos", video) == [], "one place is kept for the report"
    return other


def test_turn_reserves_one_of_several_places(fleet):
    other = with_one_of_two_places_kept(fleet)
    assert len(fleet.end("videos 2", other) + fleet.inbox("videos")) == 1
    (report,) = fleet.inbox("reports")
    assert [each.job_id for each in fleet.end("reports", report)] == ["report!"]
    fleet.scheduler.tick()
    assert len(fleet.jobs("videos") + fleet.jobs("videos 2")) == 0, "both places are held"


def test_further_end_does_not_extend_a_turn(fleet):
    other = with_one_of_two_places_kept(fleet)
    fleet.scheduler.advance(PATIENCE_S - 1)
    assert len(fleet.end("videos 2", other) + fleet.inbox("videos")) == 1
    fleet.advance_and_tick(1)
    assert [len(fleet.claims(worker)) for worker in ("videos", "videos 2")] == [1, 1]


def test_turn_continues_for_a_job_admitted_by_its_rate(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.scheduler.configure({"worker_timeout_us": "1000000000"})
    fleet.join("videos", "video")
    fleet.join("reports", "report")
    fleet.publish("busy", "report")
    for number in range(3):
        fleet.publish(f"video-{number}!", "video", rules=KEYED)
    for number in range(2):
        fleet.publish(f"report-{number}&", "report", rules=f"key=rate%3Ar rate=1/9000000000 {KEYED}")
    begin_turn(fleet)
    fleet.scheduler.revoke(["task-report-0&"], [], keep_s=60)
    fleet.scheduler.tick()
    assert fleet.inbox("videos") == [], "the key is kept for the second report"
    (busy,) = fleet.inbox("reports")
    assert [claim.job_id for claim in fleet.end("reports", busy)] == ["report-1&"]


def test_turn_data_is_deleted_with_the_keys_last_job(fleet, redis_client):
    assert play(fleet, 60)
    for worker in ("videos", "reports"):
        fleet.scheduler.leave(worker)
    assert redis_client.hkeys(Keys().key("key_state", "k")).count(b"@video") == 1
    for type_ in ("video", "report"):
        fleet.scheduler.purge(type_)
    assert not redis_client.exists(Keys().key("key_state", "k"))
