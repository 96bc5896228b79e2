"""`celery affinity dispatcher`, run as a user runs it."""

import os
import sys

import pytest

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.processes import Process, wait_until
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


def test_a_dispatcher_alone_promotes_scheduled_jobs_and_recovers_those_of_the_dead(valkey, fleet):
    fleet.publish("later", "pdf", delay_s=1)
    fleet.join("dead", "excel", settings={"worker_timeout": 2, "heartbeat_interval": 1})
    fleet.publish("orphan", "excel")
    assert fleet.state("orphan") == "claimed"
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "dispatcher"]
    dispatcher = Process("dispatcher", command, {"BROKER_URL": valkey.url, "LEDGER": os.devnull})
    dispatcher.wait_for("dispatcher ready on redis://", 20)
    wait_until(lambda: fleet.state("later") == "pending", 10, "the scheduled job is due")
    wait_until(lambda: fleet.state("orphan") == "pending", 10, "the dead worker's job is back")
    dispatcher.term()
    assert dispatcher.wait(10) == 0


@pytest.fixture
def broker_that_is_away():
    server = EmbeddedServer()
    server.start()
    server.stop()
    yield server
    server.stop()


@pytest.fixture
def waiting_dispatcher(broker_that_is_away):
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "dispatcher"]
    dispatcher = Process("dispatcher", command, {"BROKER_URL": broker_that_is_away.url, "LEDGER": os.devnull})
    dispatcher.wait_for("does not answer, trying again", 20)
    return dispatcher


def test_a_dispatcher_waits_for_a_broker_that_is_away(waiting_dispatcher, broker_that_is_away):
    broker_that_is_away.start()
    waiting_dispatcher.wait_for("dispatcher ready on redis://", 20)
    waiting_dispatcher.term()
    assert waiting_dispatcher.wait(10) == 0


def test_a_dispatcher_that_waits_for_its_broker_can_be_ended(waiting_dispatcher):
    waiting_dispatcher.term()
    assert waiting_dispatcher.wait(30) == 1  # a try under way may take as long as the wait for a reply
