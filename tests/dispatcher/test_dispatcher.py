"""The dispatcher's thread ticks and never runs user code."""

import threading
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_affinity.clock import ClockStep, ServerTime
from celery_affinity.dispatcher.dispatcher import Dispatcher
from celery_affinity.dispatcher.ingest import Ingest
from celery_affinity.dispatcher.recurring import RecurringCalls
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.publishing.app_config import settings_of
from celery_affinity.results.reporter import ResultReporter
from celery_affinity.results.unrun_jobs import UnrunJobReporter
from celery_affinity.scheduler.messages import JoinArguments
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

from ..support.messages import wire
from ..support.processes import wait_until
from ..support.scripted_fleet import ScriptedFleet


def run():
    """Serve as a task."""


#: Publishes no recurring calls.
QUIET = SimpleNamespace(look=lambda *_, **__: None, stop=lambda: None)


class Ticked:
    """The part of a scheduler that a dispatcher needs; counts ticks."""

    #: A server for which another process has written the notes about waiting jobs.
    client, keys = SimpleNamespace(set=lambda *_, **__: None), Keys()

    def __init__(self):
        self.ticks, self.looked_in, self.reader = 0, [], None

    def tick(self, lists):
        self.ticks += 1
        self.looked_in.append(list(lists))
        idle = {"unreported": False, "recurring": False, "dead_workers": [], "recovered": 0}
        time = ServerTime(self.ticks, self.ticks * 1e-6, self.ticks * 1e-6)
        return SimpleNamespace(**idle, lists=list(lists), next_due_s=0.001, time=time)


def test_hanging_stock_message_delays_no_tick(caplog):
    release, moved = threading.Event(), []

    def move(_, lists):
        moved.append(lists)
        release.wait(30)
        return False

    scheduler, announcer = Ticked(), SimpleNamespace(announce=lambda *_, **__: None, stop=lambda: None)
    dispatcher = Dispatcher(scheduler, announcer, SimpleNamespace(lists=lambda _: ["pdf"], move=move), QUIET)
    dispatcher.start()
    dispatcher.wake()
    try:
        wait_until(lambda: moved, 10, "it is moved")
        so_far = scheduler.ticks
        wait_until(lambda: scheduler.ticks > so_far + 10, 10, "it ticks")
        assert scheduler.looked_in[-1] == [], "no list is read while a move hangs"
        assert moved == [["pdf"]]
        release.set()
        wait_until(lambda: len(moved) > 1, 10, "it continues")
    finally:
        release.set()
        dispatcher.stop()
    assert caplog.text == ""


class Watched:
    """An app that records the threads that use it."""

    def __init__(self, app):
        self._app, self.threads = app, set()

    def __getattr__(self, name):
        self.threads.add(threading.current_thread().name)
        return getattr(self._app, name)


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's backend
def test_tick_thread_never_uses_the_app(redis_client, valkey):
    scheduler = Scheduler(redis_client, Keys())
    scheduler.join(JoinArguments("worker", "worker@host", ["pdf"], 1), shared_settings(Settings()))
    with Celery("watched", broker=valkey.url, backend=valkey.url, set_as_current=False) as app:
        watched = Watched(app)
        app.conf.broker_transport = "celery_affinity:Transport"
        app.task(run, name="task", shared=False)
        settings_of(watched)
        reporter = ResultReporter(watched, "host", lambda: None)
        dispatcher = Dispatcher(
            scheduler, UnrunJobReporter(reporter), Ingest(watched), RecurringCalls(watched, reporter)
        )
        watched.threads.clear()
        scheduler.publish(NewJob("ended", "pdf", "message", task_id="ended", task_name="task", expires_us=0))
        redis_client.lpush("pdf", wire(eta="2020-01-01T00:00:00"))
        redis_client.zadd(Keys().key("unreported"), {"corrupt": 1})
        dispatcher.start()
        dispatcher.wake()
        try:
            wait_until(lambda: app.AsyncResult("ended").state == "REVOKED", 10, "its end is reported")
            wait_until(lambda: not redis_client.exists("pdf", Keys().key("unreported")), 10, "all is done")
        finally:
            dispatcher.stop()
    assert {"affinity-announcer", "affinity-ingest", "affinity-recurring"} <= watched.threads
    assert "affinity-dispatcher" not in watched.threads


def test_ticks_write_one_point_of_the_history_per_interval(redis_client):
    scheduler = FakeClockScheduler(redis_client, Keys())
    announcer = SimpleNamespace(announce=lambda *_, **__: None, stop=lambda: None)
    dispatchers = [Dispatcher(scheduler, announcer, SimpleNamespace(lists=lambda _: []), QUIET) for _ in range(2)]
    points = Keys().key("history", "10")
    try:
        for waited_s, expected in ((0, 1), (0, 1), (10, 2)):
            scheduler.advance(waited_s)
            if waited_s:
                redis_client.delete(Keys().key("history_written"))  # expires after 5 s of the real clock
            for dispatcher in dispatchers:
                dispatcher._tick()
            assert redis_client.llen(points) == expected
    finally:
        for dispatcher in dispatchers:
            dispatcher.stop()


@pytest.mark.parametrize(("size_s", "message"), [(3600, "forward by 3,600 s"), (-3600, "back by 3,600 s")])
def test_step_of_the_servers_clock_is_logged_once_and_kept(redis_client, caplog, size_s, message):
    scheduler = FakeClockScheduler(redis_client, Keys())
    announcer = SimpleNamespace(announce=lambda *_, **__: None, stop=lambda: None)
    dispatchers = [Dispatcher(scheduler, announcer, SimpleNamespace(lists=lambda _: []), QUIET) for _ in range(2)]
    try:
        scheduler.publish(NewJob("waits", "pdf", "m", delay_us=7_200_000_000))
        due = redis_client.zscore(Keys().key("scheduled"), "waits")
        for _ in range(2):
            for dispatcher in dispatchers:
                dispatcher._tick()
        assert redis_client.hget(Keys().key("clock"), "stepped") is None
        scheduler.advance(size_s)
        for _ in range(2):
            for dispatcher in dispatchers:
                dispatcher._tick()
    finally:
        for dispatcher in dispatchers:
            dispatcher.stop()
    (line,) = [record.message for record in caplog.records if "The server's clock" in record.message]
    assert message in line
    step = ClockStep.parse(redis_client.hget(Keys().key("clock"), "stepped").decode())
    assert step.at_us == scheduler.now_us
    assert step.size_us == pytest.approx(size_s * 1_000_000, abs=5_000_000)
    assert redis_client.zscore(Keys().key("scheduled"), "waits") == due


@pytest.mark.parametrize("jobs", [0, 1, 14])
def test_silent_workers_and_their_tasks_are_named_in_the_log(redis_client, caplog, jobs):
    scheduler = FakeClockScheduler(redis_client, Keys())
    fleet = ScriptedFleet(scheduler)
    announcer = SimpleNamespace(announce=lambda *_, **__: None, stop=lambda: None)
    dispatcher = Dispatcher(scheduler, announcer, SimpleNamespace(lists=lambda _: []), QUIET)
    fleet.join("pdf1", "pdf", slots=20)
    for nth in range(jobs):
        fleet.publish(f"job{nth}", "pdf")
    try:
        for _ in range(40):
            dispatcher._tick()
            scheduler.advance(1)
    finally:
        dispatcher.stop()
    (line,) = [record.message for record in caplog.records if "silent worker" in record.message]
    assert line.startswith(f"1 silent worker(s) declared dead: pdf1@host; jobs reclaimed from them: {jobs}")
    named = [nth for nth in range(jobs) if f"task-job{nth}," in f"{line},".replace(")", ",").replace(" and", ",")]
    assert len(named) == min(jobs, 10)
    assert (" and 4 more: see `celery affinity requeues`" in line) == (jobs == 14)
