"""A result backend or signal handler that never returns blocks one thread and nothing else."""

import signal
import socket
import sys
import threading
from contextlib import suppress

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.fleet import in_time, wait_for_state
from ..support.processes import Process, start_worker, wait_until

HANGS = "tests.support.apps.hangs"

#: Max seconds for steps that would hang forever if the code were wrong; they take 1 to 3 s.
SOON_S = 15


class MuteServer:
    """A server that accepts connections, reads nothing, and never answers."""

    def __init__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._socket.getsockname()[1]}/0"
        self.connections = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                self.connections.append(self._socket.accept()[0])

    def close(self):
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # a mere close would not end the accept
        self._socket.close()
        for each in self.connections:
            each.close()


@pytest.fixture
def mute():
    server = MuteServer()
    yield server
    server.close()


class Reporters:
    """Starts processes that report ends: workers with a pool, or dispatchers."""

    def __init__(self, fleet, mute):
        self.url = fleet.url
        self.env = {"LEDGER": str(fleet.ledger.path), "MUTE_URL": mute.url, "EVENTS": "1"}

    def start(self, kind, name):
        if kind == "dispatcher":
            command = [sys.executable, "-m", "celery", "-A", HANGS, "affinity", "dispatcher"]
            return Process(name, command, {"BROKER_URL": self.url, **self.env})
        return start_worker(HANGS, self.url, ["pdf"], pool=kind, name=name, env=self.env)


def end_of(fleet, name):
    """Publish an expired job of an unserved type; return its result."""
    task = f"{APP}.pdf" if name == "healthy" else f"{HANGS}.{name}"
    sent = fleet.app.send_task(task, (name,), queue="nobody", affinity="nobody", expires=-1)
    return AsyncResult(sent.id, app=fleet.app)


@pytest.mark.parametrize("kind", in_time("prefork", "gevent", "dispatcher"))
def test_hanging_report_delays_no_job_report_stop_or_process(fleet, mute, kind):
    reporters = Reporters(fleet, mute)
    first = reporters.start(kind, "first")
    first.wait_for("dispatcher ready" if kind == "dispatcher" else " ready.", 30)
    end_of(fleet, "mute")
    wait_until(lambda: mute.connections, SOON_S, "the result backend is asked")
    hanging = end_of(fleet, "handled_for_ever")
    wait_for_state(hanging, "REVOKED", SOON_S)
    wait_until(lambda: fleet.ledger.starts()["handler"], SOON_S, "the handler of the signal is called")

    second = reporters.start("dispatcher", "second")
    second.wait_for("dispatcher ready", 30)
    due = fleet.app.send_task(f"{APP}.pdf", ("due",), affinity="pdf" if kind != "dispatcher" else "none", countdown=1)
    wait_for_state(end_of(fleet, "healthy"), "REVOKED", SOON_S)
    if kind == "dispatcher":
        wait_until(lambda: not fleet.report.status().scheduled, SOON_S, "the due job is pending")
    else:
        assert due.get(timeout=SOON_S) == "due"
    assert fleet.ledger.starts()["handler"] == 1, "its result is stored, so its end is acked: no other process hangs"

    first.term()
    assert first.wait(SOON_S) == 0
    assert "Not waiting for" in first.log()
    assert second.is_running
    wait_for_state(end_of(fleet, "healthy"), "REVOKED", SOON_S)
    second.signal(signal.SIGTERM)
    assert second.wait(SOON_S) == 0


def test_hanging_report_moves_to_another_process_after_a_pause(fleet, mute):
    reporters = Reporters(fleet, mute)
    first = reporters.start("dispatcher", "first")
    first.wait_for("dispatcher ready", 30)
    end_of(fleet, "mute")
    wait_until(lambda: mute.connections, SOON_S, "the result backend is asked")
    (job,) = fleet.redis.zrange(Keys().key("unreported"), 0, -1)
    fleet.redis.zadd(Keys().key("unreported"), {job: 1})  # the pause is over
    first_tried = fleet.redis.hget(Keys().key("job", job.decode()), "tries")
    wait_for_state(end_of(fleet, "healthy"), "REVOKED", SOON_S)
    assert first_tried == b"1"
    assert fleet.redis.hget(Keys().key("job", job.decode()), "tries") == b"1", "it hangs here already"

    second = reporters.start("dispatcher", "second")
    wait_until(lambda: len(mute.connections) > 1, 30, f"another tries it\n{second.log()}")
    assert fleet.redis.hget(Keys().key("job", job.decode()), "tries") == b"2"
    seconds, micros = fleet.redis.time()
    ((_, again_us),) = fleet.redis.zrange(Keys().key("unreported"), 0, -1, withscores=True)
    pause_s = again_us / 1e6 - seconds - micros / 1e6
    assert 10 < pause_s <= 20, "the pause grows"
    for each in (first, second):
        each.kill()


def test_end_of_an_unnamed_app_is_reported_by_another(fleet):
    def start(name, knows):
        unnamed = ["-A", "tests.support.apps.unnamed"]
        command = [sys.executable, "-m", "celery", *unnamed, "affinity", "dispatcher", "-l", "INFO"]
        process = Process(name, command, {"BROKER_URL": fleet.url, "KNOWS": knows})
        process.wait_for("dispatcher ready", 30)
        return process

    other, knows = start("other", "0"), start("knows", "1")
    sent = [fleet.app.send_task("unnamed.task", queue="nobody", expires=0.01) for _ in range(6)]
    for each in sent:
        wait_for_state(AsyncResult(each.id, app=fleet.app), "REVOKED", 10)  # apps with the task have 15 s to report
    wait_until(lambda: knows.log().count("reported to its caller") == 6, 10, f"six reports\n{knows.log()}{other.log()}")


def test_corrupt_job_hash_delays_no_end_and_no_stock_message(fleet, mute):
    corrupt = end_of(fleet, "healthy")
    (job,) = fleet.redis.zrange(Keys().key("unreported"), 0, -1)
    fleet.redis.unlink(Keys().key("job", job.decode()))
    worker = fleet.start("worker", "pdf", pool="threads")
    with Celery("stock", broker=fleet.url, backend=fleet.url, set_as_current=False) as stock:
        sent = stock.send_task(f"{APP}.pdf", ("stock",), queue="pdf")
        wait_for_state(end_of(fleet, "healthy"), "REVOKED", SOON_S)
        assert sent.get(timeout=SOON_S) == "stock"
    wait_until(lambda: f"Job {job.decode()} has ended with an unknown outcome" in worker.log(), SOON_S, worker.log())
    assert corrupt.state == "PENDING"
