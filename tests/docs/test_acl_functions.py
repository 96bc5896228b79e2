"""The functions that producers call: producers may not load them, so a worker or a dispatcher has loaded them."""

import os
import re
import sys

import pytest
import redis

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.constants import MAX_MOVES
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.reserves import encoded_reserves

from ..support.acl_users import PAGE_TEXT, publish
from ..support.apps import APP
from ..support.processes import Process
from ..support.scripted_fleet import ScriptedFleet


def test_a_producer_calls_the_function_that_a_worker_loads_when_it_joins(scheduler_of, redis_client):
    redis_client.function_flush()
    producer, worker = scheduler_of("producer"), scheduler_of("worker")
    with pytest.raises(redis.ConnectionError, match=r"does not have the function of publish, and .* may not load it"):
        ScriptedFleet(producer).publish("job", "pdf")
    ScriptedFleet(worker).join("worker", "pdf")
    assert ScriptedFleet(producer).publish("job", "pdf")


def test_a_fleet_at_work_gives_producers_their_function_again(scheduler_of, redis_client):
    producer, worker = scheduler_of("producer"), scheduler_of("worker")
    ScriptedFleet(worker).join("worker", "pdf")
    redis_client.function_flush()
    worker.tick()
    assert ScriptedFleet(producer).publish("job", "pdf")


def test_a_producer_with_the_right_to_load_needs_nobody(scheduler_of, redis_client):
    redis_client.execute_command("ACL", "SETUSER", "producer", "+function|load")
    redis_client.function_flush()
    assert ScriptedFleet(scheduler_of("producer")).publish("job", "pdf")


def test_a_caller_is_told_that_nobody_has_loaded_its_function(as_user, redis_client):
    redis_client.function_flush()
    run = publish(as_user("producer"))
    assert run.returncode == 1
    said = re.search(r"^the server does not have .*this version", PAGE_TEXT, re.MULTILINE)
    assert said[0] in run.stderr


def test_a_dispatcher_loads_the_function_of_producers(as_user, redis_client):
    redis_client.function_flush()
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "dispatcher"]
    dispatcher = Process("dispatcher", command, {"BROKER_URL": as_user("worker"), "LEDGER": os.devnull})
    dispatcher.wait_for("dispatcher ready", 20)
    assert publish(as_user("producer")).returncode == 0


def test_what_a_producer_may_not_place_a_workers_sync_does(scheduler_of, redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    slots = 2 * MAX_MOVES
    fleet.join("worker", "pdf", slots=slots)
    jobs = [NewJob(f"job-{number}", "pdf", "message") for number in range(slots)]
    assert all(each.fresh for each in scheduler_of("producer").publish(*jobs))
    assert len(fleet.claims("worker")) == MAX_MOVES
    fleet.sync("worker", slots=slots)
    assert len(fleet.claims("worker")) == slots


def test_a_producer_leaves_an_older_job_that_it_lets_go_on_to_a_worker(scheduler_of):
    producer, worker = ScriptedFleet(scheduler_of("producer")), ScriptedFleet(scheduler_of("worker"))
    worker.join("worker", "pdf", slots=2)
    for name in ("first!", "older!"):
        producer.publish(name, "pdf", rules="key=k limit=1")
    assert worker.jobs("worker") == ["first!"]
    assert producer.publish("newer!", "pdf", rules="key=k limit=2")
    worker.sync("worker", slots=2)
    assert worker.jobs("worker") == ["older!"]


def test_a_producer_places_what_a_reserve_lets_start_and_leaves_an_older_job_to_a_worker(scheduler_of):
    producer, worker = ScriptedFleet(scheduler_of("producer")), ScriptedFleet(scheduler_of("worker"))
    worker.scheduler.configure({"reserve": encoded_reserves({"pdf": {"queued": 2}})})
    worker.scheduler.tick()
    worker.join("worker", "pdf", slots=3)
    for name in ("first", "older"):
        producer.publish(name, "pdf")
    producer.publish("asked", "pdf", on_demand=True)
    assert worker.jobs("worker") == ["first", "asked"]
    worker.scheduler.configure({"reserve": " "})  # whose caller fills the slots, but for one that dies here
    producer.publish("newer", "pdf")
    worker.sync("worker", slots=3)
    assert worker.jobs("worker") == ["older"]
