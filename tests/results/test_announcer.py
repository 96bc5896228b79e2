"""Threads and log of `UnrunJobReporter`, which reports ends without a worker; the tests pass the time in."""

import threading

import pytest
import redis

from celery_affinity.background import SLOW_AFTER_S
from celery_affinity.results import unrun_jobs as announcers
from celery_affinity.results.unrun_jobs import LATE_AFTER_S, THREADS, UnrunJobReporter
from celery_affinity.scheduler.messages import UnreportedEnd
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys

from ..support.clocked import Clock
from ..support.processes import wait_until


class Server:
    """A scheduler with a list of unreported ends."""

    def __init__(self, *unreported):
        self.unreported = [UnreportedEnd(name, "expired", "pdf", name, "task", 0, 1.0, False) for name in unreported]
        self.telling, self.acked, self.declined, self.aside = [], [], [], []
        self.error = None

    def next_report(self, app, *, again_s, telling):
        if self.error:
            raise self.error
        self.telling.append(sorted(telling))
        return self.unreported.pop(0) if self.unreported else None

    def message_of(self, job_id):
        return b"large"

    def ack_report(self, job_ids):
        self.acked += job_ids

    def leave_to_others(self, app, job_ids):
        self.declined.append((app, *job_ids))

    def set_aside(self, job_ids):
        self.aside += job_ids


class HangingReporter:
    """A result reporter for which some ends hang, before or after the caller has them, until `release` is set."""

    def __init__(self):
        self.hangs, self.hangs_in_a_signal, self.fails, self.unknown = set(), set(), set(), set()
        self.begun = []
        self.error = OSError("no backend")
        self.release = threading.Event()

    def identity(self):
        return "app"

    def knows(self, task_name):
        return task_name not in self.unknown

    def tell(self, ending, message, is_known):
        self.begun.append(ending.job_id)
        if ending.job_id in self.fails:
            raise self.error
        if ending.job_id in self.hangs:
            self.release.wait(30)
        is_known()
        if ending.job_id in self.hangs_in_a_signal:
            self.release.wait(30)


@pytest.fixture
def reporter():
    reporter = HangingReporter()
    yield reporter
    reporter.release.set()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def announcer(reporter, clock):
    announcer = UnrunJobReporter(reporter, now_s=clock)
    yield announcer
    reporter.release.set()
    announcer.stop()


def look_until(announcer, server, clock, predicate):
    """Announce like a dispatcher, with passing time, until *predicate* holds."""

    def look():
        announcer.announce(server, unreported=True)
        clock.at_s += SLOW_AFTER_S / 4
        return predicate()

    wait_until(look, 10, "the predicate")


def test_hanging_report_is_logged_once_and_completes_later(announcer, reporter, clock, caplog):
    server = Server("hangs", "other")
    reporter.hangs = {"hangs"}
    look_until(announcer, server, clock, lambda: server.acked == ["other"])
    assert caplog.text == ""
    assert server.telling[-1] == ["hangs"], "the server must not assign it to this process again"
    clock.at_s += LATE_AFTER_S
    for _ in range(3):
        announcer.announce(server, unreported=False)
    (record,) = caplog.records
    assert "hangs does not have the outcome expired yet" in record.getMessage()
    reporter.release.set()
    wait_until(lambda: server.acked == ["other", "hangs"], 10, "the late end is reported as well")


def test_end_is_reported_before_a_signal_handler_hangs(announcer, reporter, clock, caplog):
    server = Server("hangs")
    reporter.hangs_in_a_signal = {"hangs"}
    look_until(announcer, server, clock, lambda: server.acked == ["hangs"])
    clock.at_s += LATE_AFTER_S + 1
    announcer.announce(server, unreported=False)
    (record,) = caplog.records
    assert "a signal handler is blocked" in record.getMessage()


def test_hanging_threads_are_logged_and_more_are_tried_after_pauses(announcer, reporter, clock, caplog, monkeypatch):
    monkeypatch.setattr(announcers, "_NEW_THREAD_AFTER_S", 1000.0)
    announcer._pause_s = 1000.0
    names = [f"hangs-{number}" for number in range(9)]
    server = Server(*names)
    reporter.hangs = set(names)

    def hanging():
        return len(reporter.begun)

    look_until(announcer, server, clock, lambda: hanging() == THREADS)
    clock.at_s += LATE_AFTER_S + 1
    for _ in range(3):
        announcer.announce(server, unreported=True)
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    assert "All 4 threads that report outcomes to callers are blocked" in caplog.text
    for pause_s in (1000, 2000):
        before = hanging()
        clock.at_s += pause_s - 1
        announcer.announce(server, unreported=True)
        assert hanging() == before
        clock.at_s += 1
        announcer.announce(server, unreported=True)
        wait_until(lambda before=before: hanging() == before + 1, 10, "another thread is tried")
        clock.at_s += LATE_AFTER_S + 1
        announcer.announce(server, unreported=True)
    reporter.release.set()
    wait_until(lambda: sorted(server.acked) == names, 10, "all ends are reported when the threads continue")
    announcer.announce(server, unreported=True)
    assert announcer._threads.max_threads == THREADS


def test_backend_error_delays_no_other_end(announcer, reporter, clock, caplog):
    server = Server("fails", "other")
    reporter.fails = {"fails"}
    look_until(announcer, server, clock, lambda: server.acked == ["other"])
    assert reporter.begun == ["fails", "other"]
    assert "The caller of task fails cannot get the outcome expired yet" in caplog.text


@pytest.mark.parametrize(
    ("error", "tracebacks"),
    [(redis.OutOfMemoryError("used memory > 'maxmemory'"), 0), (redis.ConnectionError("away"), 0), (KeyError("x"), 1)],
)
def test_backend_errors_are_logged_in_one_line_each(announcer, reporter, clock, caplog, error, tracebacks):
    server = Server("one", "two", "other")
    reporter.fails, reporter.error = {"one", "two"}, error
    look_until(announcer, server, clock, lambda: server.acked == ["other"])
    lines = [record for record in caplog.records if "retrying later" in record.message]
    assert len(lines) == 2
    assert all(type(error).__name__ in record.message for record in lines)
    assert sum(record.exc_info is not None for record in lines) == tracebacks


def test_unknown_tasks_end_is_left_to_others_unless_for_anyone(announcer, reporter, clock):
    server = Server("first", "second")
    server.unreported[1] = server.unreported[1]._replace(for_anyone=True)
    reporter.unknown = {"task"}
    look_until(announcer, server, clock, lambda: server.acked == ["second"])
    assert server.declined == [("app", "first")]


def test_unreachable_broker_is_logged_once(announcer, clock, caplog):
    server = Server("one")
    server.error = redis.ConnectionError("away")
    for _ in range(3):
        announcer.announce(server, unreported=True)
        wait_until(lambda: not announcer._threads.busy_for_s and not announcer._threads._is_wanted, 10, "it is idle")
    assert caplog.text.count("The broker does not answer") == 1
    server.error = None
    look_until(announcer, server, clock, lambda: server.acked == ["one"])


# -- on a real server


@pytest.fixture
def scheduler(redis_client):
    return Scheduler(redis_client, Keys())


def end(scheduler, *names, message="message"):
    """Publish jobs that end without a worker."""
    for name in names:
        scheduler.publish(NewJob(name, "pdf", message, task_id=name, task_name="task", expires_us=0))


CORRUPTIONS = {
    "deleted": lambda client, key: client.unlink(key),
    "no hash": lambda client, key: client.unlink(key) and client.set(key, "what"),
    "no time": lambda client, key: client.hset(key, "ended", "yesterday"),
    "no state": lambda client, key: client.hdel(key, "state"),
    "no task": lambda client, key: client.hdel(key, "task"),
    "no text": lambda client, key: client.hset(key, "name", b"\xff\xfe"),
    "no number": lambda client, key: client.hset(key, "deliveries", "many"),
}


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_corrupt_job_hash_is_quarantined_and_next_end_reported(
    scheduler, redis_client, announcer, clock, caplog, corrupt, reporter
):
    end(scheduler, "corrupt", "sound")
    corrupt(redis_client, Keys().key("job", "corrupt"))
    look_until(announcer, scheduler, clock, lambda: not scheduler.reader.has_unreported_ends())
    assert reporter.begun == ["sound"]
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "Job corrupt has ended with an unknown outcome" in record.getMessage()


def test_message_of_wrong_type_counts_as_deleted(scheduler, redis_client):
    end(scheduler, "sound", "deleted", "corrupt")
    redis_client.unlink(Keys().key("message", "deleted"), Keys().key("message", "corrupt"))
    redis_client.lpush(Keys().key("message", "corrupt"), "what")
    reports = [scheduler.next_report("app", again_s=60) for _ in range(3)]
    messages = {report.job_id: report.message for report in reports}
    assert messages == {"sound": b"message", "deleted": b"", "corrupt": b""}


def test_large_messages_bypass_the_server_functions(scheduler, redis_client):
    end(scheduler, *map(str, range(10)), message="x" * 3_000_000)
    end(scheduler, "small", message="x" * 65536)
    before = redis_client.info("stats")["total_net_output_bytes"]
    reports = [scheduler.next_report("app", again_s=60) for _ in range(11)]
    assert redis_client.info("stats")["total_net_output_bytes"] - before < 200_000
    assert {report.job_id: report.message for report in reports} == {
        **{str(number): None for number in range(10)},
        "small": b"x" * 65536,
    }
    assert scheduler.reader.message_of("3") == b"x" * 3_000_000


def test_tried_end_is_reserved_for_the_app_for_an_hour(scheduler, redis_client):
    end(scheduler, "job")
    key, now_us = Keys().key("job", "job"), redis_client.time()[0] * 10**6
    for tries, age_s, is_for_anyone in (("0", 10, 0), ("0", 20, 1), ("1", 20, 0), ("1", 3500, 0), ("1", 3700, 1)):
        redis_client.hset(key, mapping={"tries": tries, "ended": now_us - age_s * 10**6})
        redis_client.zadd(Keys().key("unreported"), {"job": 1})
        assert scheduler.next_report("app", again_s=60).for_anyone == is_for_anyone, (tries, age_s)
