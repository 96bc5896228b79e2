"""Tests as a user writes them, with the fixtures of `celery_affinity.testing`: `testing/test_testing.py` runs them.

The tests run in this order: some look at what the test before has left.
"""

import os
import signal
import threading
import time

import psutil
import pytest
from celery import Celery, current_app
from celery._state import task_join_will_block
from celery.worker import state

from celery_affinity import AffinityError, explain
from celery_affinity.testing import WorkerProcess, WorkerThread
from celery_affinity.testing.app import directed

NOWHERE = "redis://redis.invalid"

app = Celery("users", broker=NOWHERE, backend=NOWHERE)
app.conf.broker_transport = "celery_affinity:Transport"


@app.task(affinity="pdf")
def who():
    return os.getpid()


@app.task
def ordinary():
    return os.getpid()


@app.task(affinity="pdf")
def meet(together=threading.Barrier(2)):  # noqa: B008  # one for the process
    return together.wait(10) in (0, 1)


@app.task(affinity="pdf", acks_late=True, bind=True)
def crash(self):
    if not self.request.delivery_info["redelivered"]:
        time.sleep(60)
    return os.getpid()


@pytest.fixture
def affinity_app():
    return "tests.support.apps.users_tests"


def test_a_worker_without_types_serves_the_default_queue(affinity_worker):
    affinity_worker()
    left = who.delay()
    assert ordinary.delay().get(timeout=10) == os.getpid()
    assert explain(app, left.id).state == "pending"


def test_the_next_test_finds_an_empty_server_and_a_worker_with_its_own_types(affinity_broker, affinity_worker):
    assert explain(app, who.delay().id).waiting.rank == 1, "what the test before published is gone"
    worker = affinity_worker("pdf")
    left = ordinary.delay()
    assert who.delay().get(timeout=10) == os.getpid()
    assert explain(app, left.id).state == "pending"
    worker.stop()
    affinity_worker()
    assert left.get(timeout=10) == os.getpid()
    assert explain(app, who.delay().id).state == "pending", "served by the worker before, not by this one"


def test_a_worker_with_two_slots_runs_two_tasks_at_a_time(affinity_worker):
    affinity_worker("pdf", concurrency=2)
    assert [each.get(timeout=10) for each in [meet.delay(), meet.delay()]] == [True, True]


def test_a_process_has_room_for_one_worker_in_a_thread(affinity_worker):
    affinity_worker("pdf")
    with pytest.raises(AffinityError, match="has room for one worker in a thread, and has one"):
        affinity_worker("excel")


def test_a_view_in_another_thread_finds_the_app(affinity_worker):
    affinity_worker("pdf")
    found = []
    thread = threading.Thread(target=lambda: found.append((current_app.main, who.delay().get(timeout=10))))
    thread.start()
    thread.join(20)
    assert found == [("users", os.getpid())]


def test_a_setting_that_the_worker_refuses_is_the_tests_error(affinity_server):
    wrong = Celery("wrong", set_as_current=False, broker_transport="celery_affinity:Transport", affinity_guard="yes")
    for _ in range(2):  # the first has left room for the second
        with (
            directed(wrong, affinity_server.url),
            pytest.raises(AffinityError, match="affinity_guard must be True"),
        ):
            WorkerThread(wrong).start()


def test_nothing_of_the_tests_before_is_left(affinity_server):
    assert app.conf.broker_url == app.conf.result_backend == NOWHERE
    assert "CELERY_BROKER_URL" not in os.environ
    assert state.should_stop is None
    assert not task_join_will_block()
    assert not [each.name for each in threading.enumerate() if each.name.startswith(("thread@", "affinity"))]
    descendants = psutil.Process().children(recursive=True)
    assert {" ".join(each.cmdline())[-40:] for each in descendants if each.pid != affinity_server.pid} == {
        " ".join(psutil.Process(affinity_server.pid).children()[0].cmdline())[-40:]
    }, "the server and its launcher"


def test_a_job_of_a_worker_that_crashed_runs_on_the_next(affinity_worker_process):
    first = affinity_worker_process("pdf")
    task = crash.delay()
    while explain(app, task.id).state != "running":
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    second = affinity_worker_process("pdf", pool="solo")
    assert task.get(timeout=10) == second.pid != os.getpid()
    assert not first.is_running


class TestRefused:
    @pytest.mark.parametrize("types", [(["pdf", "excel"],), ("pdf,excel",), ("",)])
    def test_types(self, types):
        for build in (
            lambda: WorkerThread(app, *types),
            lambda: WorkerProcess("tests.support.apps.users_tests", *types),
        ):
            with pytest.raises(AffinityError, match=r"types must be names of types, .*'pdf', 'excel', got: "):
                build()

    def test_concurrency(self):
        with pytest.raises(AffinityError, match="concurrency must be a whole number above 0, got: '4'"):
            WorkerProcess("tests.support.apps.users_tests", concurrency="4")

    def test_an_app_for_a_process(self):
        with pytest.raises(AffinityError, match=r"what stands after `celery -A`.* for a worker process, got: <Celery"):
            WorkerProcess(app)

    def test_a_pool_that_does_not_exist(self, affinity_worker_process):
        with pytest.raises(AffinityError, match=r"the worker did not start: (?s:.*)'fork' is not one of"):
            affinity_worker_process("pdf", pool="fork")
