"""The page on Redis: restarts for maintenance and restores do to jobs what the page says, with its commands."""

import os

import pytest
import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.command import affinity
from ..support.pages import blocks, commands
from ..support.processes import run_celery, wait_until
from ..support.scripted_fleet import ScriptedFleet

PAGE = blocks("docs/how-to/redis.md")


@pytest.fixture
def copy(tmp_path):
    """Return a server that was started with a snapshot: of two waiting jobs, of which one has ended since."""
    with EmbeddedServer(directory=tmp_path / "one", options=("--dbfilename", "dump.rdb")) as server:
        client = redis.Redis.from_url(server.url)
        fleet = ScriptedFleet(Scheduler(client, Keys()))
        fleet.join("worker", "excel")
        fleet.publish("waits", "pdf", task_id="waits")
        fleet.publish("ends", "pdf", task_id="ends")
        client.save()
        fleet.join("later", "pdf")
        for claim in fleet.inbox("later"):
            fleet.end("later", claim)
        fleet.publish("new", "pdf", task_id="new")
        client.close()
    with EmbeddedServer(directory=tmp_path / "one", options=("--dbfilename", "dump.rdb")) as server:
        yield server


def run(server, block):
    """Run the commands of a block of the page; return what they print."""
    done = [affinity(server.url, *words[4:]) for words in commands(PAGE[block])]
    assert [each.returncode for each in done] == [0] * len(done), "".join(each.stderr for each in done)
    return "".join(each.stdout for each in done)


def test_jobs_are_as_they_were_and_nothing_runs_until_somebody_has_looked(copy):
    run(copy, "hold")
    client = redis.Redis.from_url(copy.url)
    fleet = ScriptedFleet(Scheduler(client, Keys()))
    fleet.join("after", "pdf", slots=2)
    assert fleet.inbox("after") == [], "all types are paused"

    said = run(copy, "look")
    assert "waits" in said
    assert "ends" in said, "it has ended since, and waits again"
    assert "new" not in said.split(), "it was published since"
    assert "nothing to repair" in said

    affinity(copy.url, "cancel", "ends")
    run(copy, "resume")
    fleet.hand_over("after")
    assert [claim.job_id for claim in fleet.inbox("after")] == ["waits"]
    client.close()


def test_a_copy_is_looked_at_on_another_server(copy):
    (words,) = commands(PAGE["elsewhere"])
    words = [APP if word == "shop" else copy.url if word.startswith("redis://") else word for word in words[1:]]
    env = {**os.environ, "BROKER_URL": "redis://localhost:1/0", "LEDGER": os.devnull}
    said = run_celery(*words, env=env)
    assert "waits" in said.stdout, said.stderr


def test_a_maintenance_of_the_server_runs_each_job_once(tmp_path):
    with EmbeddedServer(directory=tmp_path, options=("--dbfilename", "dump.rdb")) as server:
        client = redis.Redis.from_url(server.url)
        fleet = ScriptedFleet(Scheduler(client, Keys()))
        fleet.join("worker", "pdf", slots=2)
        fleet.publish("runs", "pdf", task_id="runs")
        (claim,) = fleet.inbox("worker")
        said = run(server, "maintenance")
        assert "runs" in said
        fleet.publish("waits", "pdf", task_id="waits")
        assert fleet.inbox("worker") == [], "all types are paused"

        (words,) = commands(PAGE["stop"])
        assert words == ["redis-cli", "shutdown", "save"]
        client.shutdown(save=True)
        wait_until(lambda: not server.is_running, 10, "it has saved and ended")
        server.start()

        assert fleet.end("worker", claim) == [], "it ended meanwhile, and the pause outlived the restart"
        run(server, "back")
        assert [each.job_id for each in fleet.inbox("worker")] == ["waits"]
        client.close()
