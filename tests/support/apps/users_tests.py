"""Tests like a user's, with the fixtures of `celery_affinity.testing`: `testing/test_testing.py` runs them.

The tests must run in this order, since some check the state after the previous test.
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


def test_worker_without_types_serves_the_default_queue(affinity_worker):
    affinity_worker()
    unserved = who.delay()
    assert ordinary.delay().get(timeout=10) == os.getpid()
    assert explain(app, unserved.id).state == "pending"


def test_next_test_has_an_empty_server_and_new_types(affinity_broker, affinity_worker):
    assert explain(app, who.delay().id).waiting.rank == 1, "the previous test's jobs are deleted"
    worker = affinity_worker("pdf")
    unserved = ordinary.delay()
    assert who.delay().get(timeout=10) == os.getpid()
    assert explain(app, unserved.id).state == "pending"
    worker.stop()
    affinity_worker()
    assert unserved.get(timeout=10) == os.getpid()
    assert explain(app, who.delay().id).state == "pending", "served by the previous worker, not by this one"


def test_worker_with_two_slots_runs_two_tasks_simultaneously(affinity_worker):
    affinity_worker("pdf", concurrency=2)
    assert [each.get(timeout=10) for each in [meet.delay(), meet.delay()]] == [True, True]


def test_second_worker_in_a_thread_is_refused(affinity_worker):
    affinity_worker("pdf")
    with pytest.raises(AffinityError, match="has room for one worker in a thread, and has one"):
        affinity_worker("excel")


def test_another_thread_uses_the_affinity_app(affinity_worker):
    affinity_worker("pdf")
    seen = []
    thread = threading.Thread(target=lambda: seen.append((current_app.main, who.delay().get(timeout=10))))
    thread.start()
    thread.join(20)
    assert seen == [("users", os.getpid())]


def test_invalid_setting_is_an_error_of_the_test(affinity_server):
    wrong = Celery("wrong", set_as_current=False, broker_transport="celery_affinity:Transport", affinity_guard="yes")
    for _ in range(2):  # the first failed start does not block the second
        with directed(wrong, affinity_server.url), pytest.raises(AffinityError, match="affinity_guard must be True"):
            WorkerThread(wrong).start()


def test_previous_tests_left_no_state(affinity_server):
    assert app.conf.broker_url == app.conf.result_backend == NOWHERE
    assert "CELERY_BROKER_URL" not in os.environ
    assert state.should_stop is None
    assert not task_join_will_block()
    assert not [each.name for each in threading.enumerate() if each.name.startswith(("thread@", "affinity"))]
    others = [each for each in psutil.Process().children(recursive=True) if each.pid != affinity_server.pid]
    (launcher, *_) = psutil.Process(affinity_server.pid).children()
    assert {" ".join(each.cmdline())[-40:] for each in others} == {" ".join(launcher.cmdline())[-40:]}


def test_crashed_workers_job_runs_on_the_next(affinity_worker_process):
    first = affinity_worker_process("pdf")
    task = crash.delay()
    while explain(app, task.id).state != "running":
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    second = affinity_worker_process("pdf", pool="solo")
    assert task.get(timeout=10) == second.pid != os.getpid()
    assert not first.is_running


@pytest.mark.parametrize("types", [(["pdf", "excel"],), ("pdf,excel",), ("",)])
def test_invalid_types_are_refused(types):
    for worker in WorkerThread, WorkerProcess:
        with pytest.raises(AffinityError, match=r"types must be names of types, .*'pdf', 'excel', got: "):
            worker(app if worker is WorkerThread else __name__, *types)


def test_invalid_concurrency_is_refused():
    with pytest.raises(AffinityError, match="concurrency must be a whole number above 0, got: '4'"):
        WorkerProcess(__name__, concurrency="4")


def test_worker_process_refuses_an_app_object():
    with pytest.raises(AffinityError, match=r"what stands after `celery -A`.* for a worker process, got: <Celery"):
        WorkerProcess(app)


def test_unknown_pool_is_refused(affinity_worker_process):
    with pytest.raises(AffinityError, match=r"the worker did not start: (?s:.*)'fork' is not one of"):
        affinity_worker_process("pdf", pool="fork")
