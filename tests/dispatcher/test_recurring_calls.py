"""A separate thread publishes recurring calls: a call that hangs or raises delays no tick and no other call."""

import threading

import pytest
import redis

from celery_affinity import Affinity
from celery_affinity.dispatcher.recurring import RecurringCalls
from celery_affinity.publishing import app_config
from celery_affinity.publishing.app_config import settings_of
from celery_affinity.publishing.recurring import call_of_signature
from celery_affinity.reports.recurring import recurring_rows
from celery_affinity.results.reporter import ResultReporter
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.processes import wait_until

APP = "tests.support.apps.recurring"


@pytest.fixture
def app(load_app, redis_client):
    return load_app(APP)


@pytest.fixture
def scheduler(redis_client):
    return Scheduler(redis_client, Keys())


@pytest.fixture
def calls(app):
    made = RecurringCalls(app, ResultReporter(app, "", lambda: None))
    yield made
    made.stop()


def declare(app, scheduler, name="hh", city="HH", **options):
    """Declare a call that is due now."""
    scheduler.declare_recurring([call_of_signature(app, name, app.tasks["reroute"].s(city, **options), stale_after=1)])
    wait_until(scheduler.reader.has_due, 10, "it is due")


def pending(scheduler):
    return scheduler.reader.pending("route")


def test_due_call_is_published_once(app, scheduler, calls):
    declare(app, scheduler)
    calls.look(scheduler, due=True)
    wait_until(lambda: pending(scheduler) == 1, 10, "it is made")
    calls.look(scheduler, due=True)
    (row,) = recurring_rows(scheduler.reader)
    assert row.fires_in_s > 0
    assert pending(scheduler) == 1


def test_call_of_an_unregistered_task_is_left_to_others(app, scheduler, calls, caplog):
    declare(app, scheduler)
    task = app.tasks.pop("reroute")
    try:
        calls.look(scheduler, due=True)
        wait_until(lambda: not any(calls._threads.busy_for_s), 10, "it was looked at")
        assert pending(scheduler) == 0
    finally:
        app.tasks["reroute"] = task
    due = scheduler.due_recurring("another app", again_s=10.0)
    assert due is not None
    assert due.name == "hh"
    assert "hh" not in caplog.text


def test_failing_call_is_logged_and_delays_no_other(app, scheduler, calls, caplog, monkeypatch):
    declare(app, scheduler, "bad", "B")
    declare(app, scheduler, "good", "G")
    send = app.amqp.send_task_message

    def fails(producer, name, message, *args, **options):
        if list(message.body[0]) == ["B"]:
            raise ValueError("a handler of the user's")
        return send(producer, name, message, *args, **options)

    monkeypatch.setattr(app.amqp, "send_task_message", fails)
    wait_until(lambda: calls.look(scheduler, due=True) or pending(scheduler) == 1, 10, "the good one is made")
    wait_until(lambda: "Recurring call 'bad' failed and will be retried" in caplog.text, 10, "the log says so")
    assert "a handler of the user's" in caplog.text


def test_hanging_call_delays_nothing_else(app, scheduler, calls, monkeypatch):
    declare(app, scheduler)
    hangs, release = threading.Event(), threading.Event()

    def hang(*args, **options):
        hangs.set()
        release.wait(30)

    monkeypatch.setattr(app.amqp, "send_task_message", hang)
    calls.look(scheduler, due=True)
    assert hangs.wait(10)
    calls.look(scheduler, due=True)  # does not block
    release.set()


def test_unreachable_broker_is_logged_once(app, calls, caplog):
    with redis.Redis(port=1) as away:
        scheduler = Scheduler(away, Keys())
        for _ in range(2):
            calls.look(scheduler, due=True)
            wait_until(lambda: "recurring calls are made later" in caplog.text, 10, "the log says so")
    assert caplog.text.count("recurring calls are made later") == 1


def test_configured_calls_are_declared_once_and_on_request(app, scheduler, calls, monkeypatch):
    entry = {"hh": {"task": "reroute", "args": ["HH"], "stale_after": 300}}
    monkeypatch.setitem(app.conf, "affinity_recurring", entry)
    monkeypatch.delitem(app_config._SETTINGS, app, raising=False)
    assert settings_of(app).recurring
    calls.look(scheduler, due=False)
    wait_until(lambda: [row.app for row in recurring_rows(scheduler.reader)] == ["recurring"], 10, "it is declared")
    scheduler.client.flushall()
    calls.look(scheduler, due=False)
    calls.declare_again()
    calls.look(scheduler, due=False)
    wait_until(lambda: len(recurring_rows(scheduler.reader)) == 1, 10, "it is declared again")
    app_config._SETTINGS.pop(app, None)


def test_task_without_a_merge_key_is_not_published(app, scheduler, calls, caplog, monkeypatch):
    declare(app, scheduler)
    monkeypatch.setattr(app.tasks["reroute"], "affinity", Affinity("route"))
    calls.look(scheduler, due=True)
    error = "Recurring call 'hh' failed and will be retried: recurring 'hh' needs a task with a merge key"
    wait_until(lambda: error in caplog.text, 10, "the log says so")
    assert pending(scheduler) == 0
