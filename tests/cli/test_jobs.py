"""`celery affinity jobs`, run as a user runs it."""

import json

import pytest

from celery_affinity.rules.keys import Keys
from celery_affinity.server.scheduler import Scheduler

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
