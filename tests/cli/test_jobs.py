"""`celery affinity jobs`, run as a user runs it."""

import json
import time

import pytest
from wcwidth import wcswidth

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.command import affinity
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def fleet(valkey, redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "pdf")
    for name in ("one", "two", "three"):
        fleet.publish(name, "pdf")
    return fleet


def test_jobs_are_listed_page_by_page(valkey, fleet):
    shown = affinity(valkey.url, "jobs", "--limit", "2").stdout.splitlines()
    assert shown[0].split() == ["task", "id", "state", "type", "task", "priority", "mode", "since", "worker"]
    assert shown[1].split()[:3] == ["task-one", "claimed", "pdf"]
    assert "2 jobs; there may be more: --cursor " in shown[-1]
    cursor = shown[-1].split()[-1]
    page = json.loads(affinity(valkey.url, "jobs", "list", "--limit", "2", "--cursor", cursor, "--json").stdout)
    assert ([each["id"] for each in page["jobs"]], page["cursor"]) == (["task-three"], None)


def test_a_bad_cursor_and_a_state_without_a_list_are_refused(valkey, fleet):
    run = affinity(valkey.url, "jobs", "--cursor", "x")
    assert (run.returncode, run.stderr) == (1, "Error: cursor must be the cursor of a page, got: 'x'\n")
    assert affinity(valkey.url, "jobs", "--state", "failed").returncode == 1


def test_an_empty_list_says_whether_there_is_no_job_or_none_that_matches(valkey, redis_client):
    said = "no job waits or runs, and there are no dead letters\n"
    assert affinity(valkey.url, "jobs").stdout == said
    assert affinity(valkey.url, "jobs", "--type", "pdf").stdout == "no job matches\n"
    assert affinity(valkey.url, "dead", "list").stdout == "there are no dead letters\n"
    assert affinity(valkey.url, "dead", "list", "--type", "pdf").stdout == "no dead letter matches\n"
    assert affinity(valkey.url, "dead", "list", "--json").stdout == "[]\n"


def test_a_list_shows_when_scheduled_jobs_are_due(valkey, fleet):
    assert "due" not in affinity(valkey.url, "jobs").stdout
    fleet.publish("later", "pdf", delay_s=600)
    fleet.publish("merges+", "pdf", rules="merge=m most=10 bytes=1000000 wait=60000000/300000000")
    jobs = {each["id"]: each for each in json.loads(affinity(valkey.url, "jobs", "--json").stdout)["jobs"]}
    head, *lines = affinity(valkey.url, "jobs", TZ="UTC").stdout.splitlines()
    assert head.split()[-3:] == ["since", "due", "worker"]
    of = {line.split()[0]: line.split() for line in lines}
    for id_, due_s in (("later", jobs["task-later"]["due_s"]), ("merges+", jobs["task-merges+"]["patient_until_s"])):
        words = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(due_s)).split()
        assert of[f"task-{id_}"][-2:] == words


def test_wide_characters_take_two_columns(valkey, fleet):
    for number, type_ in enumerate(("図面", "e\u0301tude", "🎉", "plain")):
        fleet.publish(f"job{number}", type_)
    lines = affinity(valkey.url, "jobs", "--state", "pending").stdout.splitlines()
    columns = {wcswidth(line[: line.index("tests.task")]) for line in lines if "tests.task" in line}
    assert (len(lines), len(columns)) == (7, 1)
