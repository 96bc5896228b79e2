"""A worker logs the start and end of pauses."""

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
    """Return a function that sends a heartbeat of a worker for pdf and returns its log lines."""
    caplog.set_level(logging.INFO, logger="celery_affinity")
    log = PauseLog()

    def heartbeat(types=("pdf",)):
        caplog.clear()
        revision = int(scheduler.client.hget(scheduler.keys.key("settings"), "revision") or 0)
        log.update(scheduler.reader, revision, types)
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    return heartbeat


def test_pause_is_logged_at_its_start_and_end(scheduler, logged):
    assert logged() == []
    scheduler.pause("type:pdf", for_s=1800, why="db migration")
    assert logged() == [("WARNING", "Type 'pdf' is paused, for 1800 s in all: db migration")]
    assert logged() == []
    scheduler.configure({"dead_max": "7"})
    assert logged() == []
    scheduler.resume("type:pdf")
    assert logged() == [("INFO", "Type 'pdf' is no longer paused")]


def test_pauses_of_keys_and_all_types_are_logged_everywhere(scheduler, logged):
    for target in ("type:excel", "key:city%3AHH", "*"):
        scheduler.pause(target)
    assert sorted(logged()) == [("WARNING", "All types are paused"), ("WARNING", "Key 'city:HH' is paused")]
    scheduler.resume("*")
    assert logged() == [("INFO", "All types are no longer paused")]


def test_changed_pause_reason_is_logged_again(scheduler, logged):
    scheduler.pause("type:pdf")
    logged()
    scheduler.pause("type:pdf", why="still")
    assert logged() == [("WARNING", "Type 'pdf' is paused: still")]


def test_expired_pause_is_logged(scheduler, logged):
    scheduler.pause("type:pdf", for_s=0.000001)  # over by the next command
    assert logged()
    scheduler.tick()
    assert logged() == [("INFO", "Type 'pdf' is no longer paused")]


def test_unreadable_pauses_are_logged_once(scheduler, logged):
    scheduler.configure({"dead_max": "7"})
    scheduler.client.set(scheduler.keys.key("pauses"), "corrupt")
    ((level, line),) = logged()
    assert (level, line.partition(":")[0]) == ("WARNING", "The pauses in Redis cannot be read, and are not logged")
    assert logged() == []
