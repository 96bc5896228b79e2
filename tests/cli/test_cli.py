"""Behaviour that all commands have in common, and Celery's commands that name this package."""

import os
from importlib.metadata import version

import pytest

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.command import affinity_process
from ..support.processes import run_celery, start_worker, wait_until
from ..support.scripted_fleet import ScriptedFleet

#: A command of each module that no other test runs in a process of its own -> a word of what it prints.
IN_A_PROCESS = {
    "jobs": "task-job&",
    "keys": "city",
    "tenants": "acme",
    "scale": "pdf",
    "dead list": "task-buried",
    "pause pdf": "paused: type 'pdf'",
    "cancel task-job&": "it does not start",
}


def test_another_transport_is_named(valkey):
    run = run_celery(
        "-A",
        "tests.support.apps.ordinary",
        "affinity",
        "status",
        env={**os.environ, "BROKER_URL": valkey.url, "STOCK": "1"},
    )
    assert run.returncode == 1
    assert "broker_transport must be 'celery_affinity:Transport', got: None" in run.stderr


@pytest.mark.parametrize(
    ("command", "env", "said"),
    [
        ("status", {"TRANSPORT": "celery_affinity:transport"}, "must be 'celery_affinity:Transport', with a capital T"),
        ("status", {"TRANSPORT": "celery_afinity:Transport"}, "'celery_afinity:Transport'"),
        ("status", {"TRANSPORT": "celery_affinity"}, "No such transport"),
        ("status", {"BROKER_URL": "redis://127.0.0.1:6379/one"}, "Database is int between 0 and limit - 1, not one"),
        (
            "settings",
            {"CONF": '{"affinity_lookahead": "8"}'},
            "must be 'auto', or a whole number, 0 or more, up to 1,000, got: '8'",
        ),
        ("dispatcher", {"CONF": '{"affinity_lookahed": 8}'}, "did you mean 'affinity_lookahead'?"),
    ],
)
def test_what_an_app_gets_wrong_is_said_in_a_line(valkey, command, env, said):
    run = run_celery("-A", APP, "affinity", command, env={**os.environ, "BROKER_URL": valkey.url, **env})
    assert run.returncode == 1
    assert said in run.stderr
    assert len(run.stderr.splitlines()) == 1, run.stderr


def test_commands_run_in_a_process_of_their_own(valkey, redis_client, subtests):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.bury("buried", "mail")
    fleet.publish("job&", "pdf", rules="key=city limit=1 key=tenant%3Aacme quota=settings")
    for words, said in IN_A_PROCESS.items():
        with subtests.test(words):
            run = affinity_process(valkey.url, *words.split())
            assert (run.returncode, said in run.stdout) == (0, True), run


def test_two_workers_of_one_name_are_told(valkey, redis_client):
    for number in range(2):
        worker = start_worker(APP, valkey.url, ["pdf"], name="same", pool="solo", env={"LEDGER": os.devnull})
        wait_until(lambda count=number + 1: redis_client.zcard(Keys().key("heartbeats")) == count, 20, worker.log())
    worker.wait_for("Another worker with node name", 10)


def test_a_report_names_the_version_of_this_package(valkey):
    run = run_celery("-A", APP, "report", env={**os.environ, "BROKER_URL": valkey.url, "LEDGER": os.devnull})
    assert f"celery_affinity:{version('celery_affinity')}, redis-py {version('redis')}" in run.stdout
