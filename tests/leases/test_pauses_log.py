"""What a worker's log says of pauses."""

import logging

import pytest

from celery_affinity.leases.capacity import PauseLog
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys


@pytest.fixture
def scheduler(redis_client):
    return Scheduler(redis_client, Keys())


@pytest.fixture
def logged(scheduler, caplog):
    """Have a worker of the type pdf heartbeat; return what it logs."""
    caplog.set_level(logging.INFO, logger="celery_affinity")
    log = PauseLog()

    def heartbeat(types=("pdf",)):
        caplog.clear()
        revision = int(scheduler.client.hget(scheduler.keys.key("settings"), "revision") or 0)
        log.update(scheduler.reader, revision, types)
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    return heartbeat


def test_a_pause_is_logged_once_when_it_begins_and_once_when_it_ends(scheduler, logged):
    assert logged() == []
    scheduler.pause("type:pdf", for_s=1800, why="db migration")
    assert logged() == [("WARNING", "Type 'pdf' is paused, for 1800 s in all: db migration")]
    assert logged() == []
    scheduler.configure({"dead_max": "7"})
    assert logged() == []
    scheduler.resume("type:pdf")
    assert logged() == [("INFO", "Type 'pdf' is no longer paused")]


def test_pauses_of_keys_and_of_everything_concern_every_worker_and_other_types_none(scheduler, logged):
    for what in ("type:excel", "key:city%3AHH", "*"):
        scheduler.pause(what)
    assert sorted(logged()) == [("WARNING", "All types are paused"), ("WARNING", "Key 'city:HH' is paused")]
    scheduler.resume("*")
    assert logged() == [("INFO", "All types are no longer paused")]


def test_another_reason_is_logged_anew(scheduler, logged):
    scheduler.pause("type:pdf")
    logged()
    scheduler.pause("type:pdf", why="still")
    assert logged() == [("WARNING", "Type 'pdf' is paused: still")]


def test_the_end_of_a_pause_that_ends_by_itself_is_logged(scheduler, logged):
    scheduler.pause("type:pdf", for_s=0.000001)  # over by the next command
    assert logged()
    scheduler.tick()
    assert logged() == [("INFO", "Type 'pdf' is no longer paused")]


def test_what_cannot_be_read_is_logged_once_and_ends_nothing(scheduler, logged):
    scheduler.configure({"dead_max": "7"})
    scheduler.client.set(scheduler.keys.key("pauses"), "spoiled")
    ((level, line),) = logged()
    assert (level, line.partition(":")[0]) == ("WARNING", "The pauses in Redis cannot be read, and are not logged")
    assert logged() == []
