"""Dead letters: listed, shown, replayed and dropped, by id, reason, type, task or age."""

import json

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.reports import dead_letters
from celery_affinity.reports.dead_letters import LetterFilter
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.command import affinity
from ..support.scripted_fleet import ScriptedFleet

MUTE = "the task rejected it without a reason"


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


@pytest.fixture
def mixed(fleet):
    """A fleet with one dead letter of each reason."""
    fleet.bury("bad")
    fleet.bury("sheet", "excel")
    fleet.bury("lost", acked=True)
    fleet.scheduler.leave("worker")
    return fleet


def found(url, *words):
    return [letter["job_id"] for letter in json.loads(affinity(url, "dead", "list", "--json", *words).stdout)]


def test_list_shows_newest_first_and_applies_filters(valkey, mixed):
    assert found(valkey.url) == ["lost", "sheet", "bad"]
    assert found(valkey.url, "--limit", "2") == ["lost", "sheet"]
    assert found(valkey.url, "--reason", "rejected") == ["sheet", "bad"]
    assert found(valkey.url, "--type", "excel") == ["sheet"]
    assert found(valkey.url, "--task", "tests.*") == ["lost", "sheet", "bad"]
    assert found(valkey.url, "--task", "other.*") == []
    assert found(valkey.url, "--older-than", "1h") == []
    lines = affinity(valkey.url, "dead", "list").stdout.splitlines()
    assert "task-lost" in lines[1]


def test_show_prints_arguments_and_reason(valkey, redis_client, load_app, fleet):
    app = load_app(APP)
    result = app.send_task("some.task", ("an argument",), {"pages": 3}, queue="pdf")
    fleet.join("worker", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.end("worker", claim, outcome="rejected")
    shown = affinity(valkey.url, "dead", "show", result.id).stdout
    assert "('an argument',)" in shown
    assert "{'pages': 3}" in shown
    assert "rejected at " in shown
    (as_json,) = json.loads(affinity(valkey.url, "dead", "show", result.id, "--json").stdout)
    assert as_json["letter"]["task"] == "some.task"
    missing = affinity(valkey.url, "dead", "show", "nobody")
    assert missing.returncode == 1
    assert "no dead letter has the task id or job id 'nobody'" in missing.stderr


def test_reason_is_one_escaped_line(valkey, fleet):
    fleet.bury("page", outcome="rejected ValueError: no such page\n\x1b[31m")
    fleet.bury("long", "excel", outcome="rejected Reject: " + "x" * 200)
    fleet.bury("mute", "index")
    header, *lines = affinity(valkey.url, "dead", "list").stdout.splitlines()
    assert header.endswith("  why")
    assert [line.split("  ")[-1].strip() for line in lines] == [
        MUTE,
        "Reject: " + "x" * 72 + "...",
        "ValueError: no such page\\n\\x1b[31m",
    ]
    shown = affinity(valkey.url, "dead", "show", "task-page").stdout
    assert "\nwhy         ValueError: no such page\\n\\x1b[31m\n" in shown
    assert f"\nwhy         {MUTE}\n" in affinity(valkey.url, "dead", "show", "task-mute").stdout
    found = json.loads(affinity(valkey.url, "dead", "list", "--json").stdout)
    assert [each["why"] for each in found] == [MUTE, "Reject: " + "x" * 200, "ValueError: no such page\n\x1b[31m"]
    assert "\nwhy         ValueError: no such page\\n\\x1b[31m\n" in affinity(valkey.url, "explain", "task-page").stdout
    fleet.scheduler.replay(["page"])
    assert not fleet.scheduler.client.hexists(Keys().key("job", "page"), "why"), "it is as if published now"


def test_replayed_letter_runs_like_a_new_job(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.join("worker", "pdf", settings={"max_deliveries": 1})
    fleet.publish("bad", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.end("worker", claim, outcome="unsettled")
    assert fleet.state("bad") == "dead"
    fleet.scheduler.advance(100)
    assert fleet.scheduler.replay(["bad", "nobody"]) == ["bad"]
    (claim,) = fleet.inbox("worker")
    assert (claim.job_id, claim.deliveries, claim.enqueued_us) == ("bad", 0, fleet.scheduler.now_us)
    assert claim.message == b"message of bad"
    assert fleet.scheduler.replay(["bad"]) == [], "it is no dead letter any more"


def test_replay_command_excludes_lost_jobs_by_default(valkey, mixed):
    run = affinity(valkey.url, "dead", "replay", "--all")
    assert run.stdout.splitlines() == [
        "2 replayed",
        "1 not replayed: lost with their worker, maybe after their work; --reason lost replays them too",
    ]
    assert mixed.state("bad") == mixed.state("sheet") == "pending"
    assert mixed.state("lost") == "dead"
    assert affinity(valkey.url, "dead", "replay", "--reason", "lost").stdout == "1 replayed\n"
    assert mixed.state("lost") == "pending"


def test_letter_with_deleted_message_is_not_replayed(valkey, redis_client, mixed):
    redis_client.delete(Keys().key("message", "bad"))
    assert affinity(valkey.url, "dead", "replay", "bad").stdout.splitlines() == [
        "0 replayed",
        "1 not replayed: their messages were deleted",
    ]
    assert mixed.state("bad") == "dead"


def test_kept_failed_jobs_are_replayed_by_id_and_in_bulk(valkey, fleet):
    fleet.bury("dead", "excel")
    fleet.scheduler.configure({"keep_us": "3600000000"})
    fleet.join("worker", "pdf", slots=3)
    for job in ("one", "two", "good"):
        fleet.publish(job, "pdf")
    *failed, good = fleet.inbox("worker")
    fleet.end("worker", good)
    fleet.end("worker", *failed, outcome="failed ValueError", inline=False)
    assert affinity(valkey.url, "dead", "replay", "task-one").stdout == "1 replayed\n"
    assert affinity(valkey.url, "dead", "replay", "task-good").returncode == 1
    assert affinity(valkey.url, "dead", "replay", "--failed", "--type", "none").stdout == "0 replayed\n"
    assert affinity(valkey.url, "dead", "replay", "--failed", "--all").stdout == "1 replayed\n"
    assert [fleet.state(job) for job in ("one", "two", "good", "dead")] == ["claimed", "claimed", "done", "dead"]


def test_drop_command_requires_confirmation(valkey, mixed):
    refused = affinity(valkey.url, "dead", "drop", "task-bad")
    assert refused.returncode == 1
    assert "Delete 1 dead letters for good?" in refused.stderr
    assert mixed.state("bad") == "dead"
    assert affinity(valkey.url, "dead", "drop", "task-bad", "--yes").stdout == "1 dropped\n"
    assert json.loads(affinity(valkey.url, "dead", "drop", "--type", "excel", "--yes", "--json").stdout) == {
        "dropped": 1,
        "unknown": [],
    }
    assert found(valkey.url) == ["lost"]
    assert mixed.state("bad") is None


def test_drop_ignores_jobs_that_are_not_dead_letters(fleet):
    fleet.publish("job", "pdf")
    assert fleet.scheduler.drop(["job"]) == 0
    assert fleet.state("job") == "pending"


@pytest.mark.parametrize("command", ["replay", "drop"])
def test_replay_and_drop_require_a_selection(valkey, mixed, command):
    for words in ([], ["task-bad", "--all"]):
        run = affinity(valkey.url, "dead", command, *words)
        assert run.returncode == 2
        assert "give ids of tasks or jobs, filters, or --all" in run.stderr
    assert len(found(valkey.url)) == 3


def test_letters_are_read_in_pages(redis_client, fleet, monkeypatch):
    monkeypatch.setattr(dead_letters, "_PAGE", 3)
    for number in range(8):
        fleet.bury(f"job{number}")
    reader = Reader(redis_client, Keys())
    assert len(dead_letters.find_letters(reader, LetterFilter())) == 8
    first, *others = dead_letters.find_letters(reader, LetterFilter())[0].task
    assert dead_letters.find_letters(reader, LetterFilter(task=f"[{first}]{''.join(others)}")) == []
    assert dead_letters.find_letters(reader, LetterFilter(task=f"{first}*")) != []
    assert len(fleet.scheduler.replay([f"job{number}" for number in range(8)])) == 8


def test_merged_run_is_one_line_with_its_calls(valkey, fleet):
    rules = "merge=city most=1000 bytes=1000000"
    fleet.scheduler.publish(*fleet.made(["a+", "b+", "c+"], "pdf", rules=rules))
    fleet.join("worker", "pdf")
    fleet.end("worker", *fleet.inbox("worker"), outcome="rejected")
    fleet.bury("alone", "excel")
    header, *lines = affinity(valkey.url, "dead", "list").stdout.splitlines()
    assert header.split()[:3] == ["ended", "reason", "calls"]
    assert [line.split()[3] for line in lines] == ["1", "3"]
    shown = affinity(valkey.url, "dead", "show", "c+").stdout
    assert "\ncalls       3, which shared the run; of the oldest:\n" in shown
    assert affinity(valkey.url, "dead", "replay", "b+").stdout == "1 replayed\n"
    assert affinity(valkey.url, "dead", "list").stdout.splitlines()[0].split()[:3] == ["ended", "reason", "type"]


def test_show_reports_whether_a_lost_jobs_message_exists(valkey, redis_client, mixed):
    assert "message     15 bytes" in affinity(valkey.url, "dead", "show", "lost").stdout
    redis_client.delete(Keys().key("message", "lost"))
    said = "gone: the server no longer has it, so the job cannot be replayed"
    assert said in affinity(valkey.url, "dead", "show", "lost").stdout
    assert mixed.scheduler.replay(["lost", "bad"]) == ["bad"]
