"""The announcer: its threads and its log, at times that are passed in."""

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
    """A scheduler with a list of ends."""

    def __init__(self, *unreported):
        self.unreported = [UnreportedEnd(name, "expired", "pdf", name, "task", 0, 1.0, False) for name in unreported]
        self.telling, self.known, self.left, self.aside = [], [], [], []
        self.error = None

    def next_report(self, app, *, again_s, telling):
        if self.error:
            raise self.error
        self.telling.append(sorted(telling))
        return self.unreported.pop(0) if self.unreported else None

    def message_of(self, job_id):
        return b"large"

    def ack_report(self, job_ids):
        self.known += job_ids

    def leave_to_others(self, app, job_ids):
        self.left.append((app, *job_ids))

    def set_aside(self, job_ids):
        self.aside += job_ids


class Telling:
    """A teller for which some ends hang, before or after the caller knows, until `let_go` is set."""

    def __init__(self):
        self.hangs, self.hangs_in_a_signal, self.fails, self.unknown = set(), set(), set(), set()
        self.begun = []
        self.error = OSError("no backend")
        self.let_go = threading.Event()

    def identity(self):
        return "app"

    def knows(self, task_name):
        return task_name not in self.unknown

    def tell(self, ending, message, is_known):
        self.begun.append(ending.job_id)
        if ending.job_id in self.fails:
            raise self.error
        if ending.job_id in self.hangs:
            self.let_go.wait(30)
        is_known()
        if ending.job_id in self.hangs_in_a_signal:
            self.let_go.wait(30)


@pytest.fixture
def teller():
    teller = Telling()
    yield teller
    teller.let_go.set()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def announcer(teller, clock):
    announcer = UnrunJobReporter(teller, now_s=clock)
    yield announcer
    teller.let_go.set()
    announcer.stop()


def look_until(announcer, server, clock, predicate):
    """Announce as a dispatcher does, with passing time, until *predicate* holds."""

    def look():
        announcer.announce(server, unreported=True)
        clock.at_s += SLOW_AFTER_S / 4
        return predicate()

    wait_until(look, 10, "what is looked for")


def test_what_hangs_is_named_once_and_when_it_comes_back_it_is_told(announcer, teller, clock, caplog):
    server = Server("hangs", "other")
    teller.hangs = {"hangs"}
    look_until(announcer, server, clock, lambda: server.known == ["other"])
    assert caplog.text == ""
    assert server.telling[-1] == ["hangs"], "it is not to come to us again"
    clock.at_s += LATE_AFTER_S
    for _ in range(3):
        announcer.announce(server, unreported=False)
    (record,) = caplog.records
    assert "hangs is not told yet that the task is expired" in record.getMessage()
    teller.let_go.set()
    wait_until(lambda: server.known == ["other", "hangs"], 10, "the late one is told as well")


def test_what_hangs_in_a_signal_is_told_before_and_named_as_such(announcer, teller, clock, caplog):
    server = Server("hangs")
    teller.hangs_in_a_signal = {"hangs"}
    look_until(announcer, server, clock, lambda: server.known == ["hangs"])
    clock.at_s += LATE_AFTER_S + 1
    announcer.announce(server, unreported=False)
    (record,) = caplog.records
    assert "a signal handler hangs" in record.getMessage()


def test_when_all_threads_hang_it_is_said_and_one_more_is_tried_after_pauses_that_double(
    announcer, teller, clock, caplog, monkeypatch
):
    monkeypatch.setattr(announcers, "_NEW_THREAD_AFTER_S", 1000.0)
    announcer._pause_s = 1000.0
    names = [f"hangs-{number}" for number in range(9)]
    server = Server(*names)
    teller.hangs = set(names)

    def hanging():
        return len(teller.begun)

    look_until(announcer, server, clock, lambda: hanging() == THREADS)
    clock.at_s += LATE_AFTER_S + 1
    for _ in range(3):
        announcer.announce(server, unreported=True)
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    assert "All 4 threads that tell callers the outcome of tasks hang" in caplog.text
    for pause_s in (1000, 2000):
        before = hanging()
        clock.at_s += pause_s - 1
        announcer.announce(server, unreported=True)
        assert hanging() == before
        clock.at_s += 1
        announcer.announce(server, unreported=True)
        wait_until(lambda before=before: hanging() == before + 1, 10, "one more is tried")
        clock.at_s += LATE_AFTER_S + 1
        announcer.announce(server, unreported=True)
    teller.let_go.set()
    wait_until(lambda: sorted(server.known) == names, 10, "when they come back, all is told")
    announcer.announce(server, unreported=True)
    assert announcer._threads.max_threads == THREADS


def test_an_error_of_the_backend_holds_up_no_other_end(announcer, teller, clock, caplog):
    server = Server("fails", "other")
    teller.fails = {"fails"}
    look_until(announcer, server, clock, lambda: server.known == ["other"])
    assert teller.begun == ["fails", "other"]
    assert "Cannot tell the caller of task fails that the task is expired" in caplog.text


@pytest.mark.parametrize(
    ("error", "tracebacks"),
    [(redis.OutOfMemoryError("used memory > 'maxmemory'"), 0), (redis.ConnectionError("away"), 0), (KeyError("x"), 1)],
)
def test_errors_of_the_backend_are_logged_in_one_line_each(announcer, teller, clock, caplog, error, tracebacks):
    server = Server("one", "two", "other")
    teller.fails, teller.error = {"one", "two"}, error
    look_until(announcer, server, clock, lambda: server.known == ["other"])
    lines = [record for record in caplog.records if "retrying later" in record.message]
    assert len(lines) == 2
    assert all(type(error).__name__ in record.message for record in lines)
    assert sum(record.exc_info is not None for record in lines) == tracebacks


def test_an_end_of_an_unknown_task_is_left_to_others_until_it_is_for_anyone(announcer, teller, clock):
    server = Server("first", "second")
    server.unreported[1] = server.unreported[1]._replace(for_anyone=True)
    teller.unknown = {"task"}
    look_until(announcer, server, clock, lambda: server.known == ["second"])
    assert server.left == [("app", "first")]


def test_a_broker_that_does_not_answer_is_named_once(announcer, clock, caplog):
    server = Server("one")
    server.error = redis.ConnectionError("away")
    for _ in range(3):
        announcer.announce(server, unreported=True)
        wait_until(lambda: not announcer._threads.busy_for_s and not announcer._threads._is_wanted, 10, "it has looked")
    assert caplog.text.count("The broker does not answer") == 1
    server.error = None
    look_until(announcer, server, clock, lambda: server.known == ["one"])


# -- on a real server


@pytest.fixture
def scheduler(redis_client):
    return Scheduler(redis_client, Keys())


def end(scheduler, *names, message="message"):
    """Have jobs end without a worker."""
    for name in names:
        scheduler.publish(NewJob(name, "pdf", message, task_id=name, task_name="task", expires_us=0))


SPOILED = {
    "gone": lambda client, key: client.unlink(key),
    "no hash": lambda client, key: client.unlink(key) and client.set(key, "what"),
    "no time": lambda client, key: client.hset(key, "ended", "yesterday"),
    "no state": lambda client, key: client.hdel(key, "state"),
    "no task": lambda client, key: client.hdel(key, "task"),
    "no text": lambda client, key: client.hset(key, "name", b"\xff\xfe"),
    "no number": lambda client, key: client.hset(key, "deliveries", "many"),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_row_that_cannot_be_read_is_set_aside_and_the_next_is_told(
    scheduler, redis_client, announcer, clock, caplog, spoil, teller
):
    end(scheduler, "spoiled", "sound")
    spoil(redis_client, Keys().key("job", "spoiled"))
    look_until(announcer, scheduler, clock, lambda: not scheduler.reader.has_unreported_ends())
    assert teller.begun == ["sound"]
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "Job spoiled has ended with an unknown outcome" in record.getMessage()


def test_a_message_that_is_none_is_as_good_as_gone(scheduler, redis_client):
    end(scheduler, "sound", "gone", "spoiled")
    redis_client.unlink(Keys().key("message", "gone"), Keys().key("message", "spoiled"))
    redis_client.lpush(Keys().key("message", "spoiled"), "what")
    announced = {each.job_id: each.message for each in (scheduler.next_report("app", again_s=60) for _ in range(3))}
    assert announced == {"sound": b"message", "gone": b"", "spoiled": b""}


def test_large_messages_pass_through_no_script(scheduler, redis_client):
    end(scheduler, *map(str, range(10)), message="x" * 3_000_000)
    end(scheduler, "small", message="x" * 65536)
    before = redis_client.info("stats")["total_net_output_bytes"]
    announced = [scheduler.next_report("app", again_s=60) for _ in range(11)]
    assert redis_client.info("stats")["total_net_output_bytes"] - before < 200_000
    assert {each.job_id: each.message for each in announced} == {
        **{str(number): None for number in range(10)},
        "small": b"x" * 65536,
    }
    assert scheduler.reader.message_of("3") == b"x" * 3_000_000


def test_an_end_that_somebody_knows_and_cannot_tell_is_left_by_others_for_an_hour(scheduler, redis_client):
    end(scheduler, "job")
    key, now_us = Keys().key("job", "job"), redis_client.time()[0] * 10**6
    for tries, age_s, is_for_anyone in (("0", 10, 0), ("0", 20, 1), ("1", 20, 0), ("1", 3500, 0), ("1", 3700, 1)):
        redis_client.hset(key, mapping={"tries": tries, "ended": now_us - age_s * 10**6})
        redis_client.zadd(Keys().key("unreported"), {"job": 1})
        assert scheduler.next_report("app", again_s=60).for_anyone == is_for_anyone, (tries, age_s)
