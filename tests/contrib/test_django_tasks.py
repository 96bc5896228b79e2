"""The backend keeps the contract of Django's tasks framework (Django 6 or newer), with real servers and workers."""

import asyncio
import json
import re
import sys
from datetime import timedelta
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("django.tasks", reason="Django 6 needs Python 3.12")

import django
from celery import current_app
from celery.exceptions import TaskRevokedError
from django.tasks import TaskResultStatus, default_task_backend
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
from django.tasks.signals import task_enqueued
from django.utils import timezone

import celery_affinity
from celery_affinity.publishing import app_config
from celery_affinity.settings.table import Settings
from celery_affinity.testing.app import directed

from ..support.processes import Process, start_worker, wait_until

# Celery calls it.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

PROJECT = "examples.django_tasks"

#: The stored call of a task.
RECORD = {"priority": 0, "queue_name": "pdf", "run_after": None, "backend": "default", "args": [], "kwargs": {}}
RECORD |= {"enqueued_at": None, "started_at": None, "last_attempted_at": None, "worker_ids": []}


@pytest.fixture
def project(valkey, redis_client, monkeypatch):
    """The tasks of the example project, whose Celery app uses the test's server."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", f"{PROJECT}.settings")
    monkeypatch.setenv("REDIS_URL", valkey.url)
    django.setup()
    from examples.django_tasks import celery_app, tasks

    celery_app.set_current()
    with directed(celery_app, valkey.url):
        yield tasks


@pytest.fixture
def worker(project, valkey):
    env = {"REDIS_URL": valkey.url}
    return start_worker(PROJECT, valkey.url, ["pdf"], name="one", pool="threads", concurrency=2, env=env)


def finished(result):
    """Return *result*, refreshed until the task has ended."""

    def is_finished():
        result.refresh()
        return result.is_finished

    wait_until(is_finished, 60, "the task ends")
    return result


def job_of(result):
    return celery_affinity.jobs(current_app).get(result.id)


def test_enqueued_task_runs_and_its_result_is_stored(project, worker):
    result = project.render.enqueue(7)
    assert (result.status, result.args, result.kwargs, result.backend) == (TaskResultStatus.READY, [7], {}, "default")
    assert result.enqueued_at is not None
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    finished(result)
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, "invoice 7 as a PDF, attempt 1")
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert (result.attempts, result.errors) == (1, [])
    assert re.match("one@", result.worker_ids[0])
    assert project.render.get_result(result.id).return_value == result.return_value
    with pytest.raises(TaskResultMismatch):
        project.archive.get_result(result.id)


def test_coroutine_task_is_enqueued_and_read_in_an_event_loop(project, worker):
    async def enqueue():
        result = await project.archive.aenqueue(7, folder="old")
        while not result.is_finished:
            await asyncio.sleep(0.05)
            await result.arefresh()
        return result, await project.archive.aget_result(result.id)

    result, again = asyncio.run(asyncio.wait_for(enqueue(), 60))
    assert result.return_value == again.return_value == ["old", 7]
    assert (again.task.priority, again.task.queue_name, again.kwargs) == (-50, "pdf", {"folder": "old"})


def test_failed_task_keeps_its_error(project, worker):
    result = finished(project.refuse.enqueue(7))
    assert result.status == TaskResultStatus.FAILED
    (error,) = result.errors
    assert error.exception_class is LookupError
    assert "LookupError: no invoice 7" in error.traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    revoked = project.render.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(7)
    current_app.control.revoke(revoked.id)
    assert finished(revoked).errors[0].exception_class is TaskRevokedError


def test_redelivered_task_counts_its_attempts(project, valkey):
    """Its worker dies in the first attempt."""
    from .late import hang_at_first

    env = {"REDIS_URL": valkey.url}
    first = start_worker("tests.contrib.late", valkey.url, ["pdf"], name="first", pool="solo", env=env)
    result = hang_at_first.enqueue()

    def has_started():
        result.refresh()
        return result.status == TaskResultStatus.RUNNING

    wait_until(has_started, 60, first.log())
    first.end()
    start_worker("tests.contrib.late", valkey.url, ["pdf"], name="second", pool="solo", env=env)
    assert finished(result).return_value == "done"
    assert [worker.partition("@")[0] for worker in result.worker_ids] == ["first", "second"]
    assert result.started_at < result.last_attempted_at


@pytest.mark.parametrize(
    ("priority", "rank"), [(-100, 0), (-91, 0), (-50, 2), (0, 5), (9, 5), (50, 8), (100, 10)], ids=str
)
@pytest.mark.parametrize("order", ["higher-first", "lower-first"])
def test_django_priority_keeps_its_direction_on_eleven_levels(project, monkeypatch, order, priority, rank):
    monkeypatch.setitem(app_config._SETTINGS, current_app._get_current_object(), Settings(priority_order=order))
    result = project.render.using(priority=priority).enqueue(7)
    assert job_of(result).priority == rank


def test_run_after_schedules_the_job_with_its_type(project):
    due = timezone.now() + timedelta(hours=1)
    result = project.render.using(run_after=due, queue_name="mail").enqueue(7)
    job = job_of(result)
    assert (job.state, job.type) == ("scheduled", "mail")
    assert project.render.get_result(result.id).task.run_after == due
    assert project.render.get_result(result.id).status == TaskResultStatus.READY


def test_invalid_tasks_and_unknown_results_raise_djangos_errors(project):
    with pytest.raises(InvalidTask, match="Queue 'excel' is not valid"):
        project.render.using(queue_name="excel")
    with pytest.raises(InvalidTask, match="priority must be a whole number"):
        project.render.using(priority=101)
    with pytest.raises(InvalidTask, match="aware"):
        project.render.using(run_after=timezone.now().replace(tzinfo=None))
    with pytest.raises(TypeError):
        project.render.enqueue(object())
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result("missing")


def test_record_of_another_object_is_refused(project, worker):
    record = {**RECORD, "task": "os.getcwd"}
    for damaged in (record, {"task": "examples.django_tasks.tasks.render"}, [], "x"):
        current_app.backend.store_result("damaged.django", damaged, "DJANGO_TASK")
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result("damaged")
    with pytest.raises(ValueError, match=r"must lead to a Task, got: 'os\.getcwd'"):
        current_app.send_task("celery_affinity.django_task", (record,), queue="pdf").get(timeout=60)


def test_signal_names_the_backend_and_the_result(project):
    received = []

    def note(sender, task_result, **_):
        received.append((sender, task_result))

    task_enqueued.connect(note)
    result = project.render.enqueue(7)
    task_enqueued.disconnect(note)
    assert [(sender.__name__, seen.id) for sender, seen in received] == [("AffinityBackend", result.id)]


def test_check_finds_an_app_with_another_transport(project, monkeypatch):
    assert list(default_task_backend.check()) == []
    monkeypatch.setitem(current_app.conf, "broker_transport", "redis")
    assert [error.id for error in default_task_backend.check()] == ["celery_affinity.E001"]


def test_example_project_serves_results_over_http(valkey, worker):
    env = {"REDIS_URL": valkey.url, "PYTHONUNBUFFERED": "1"}
    web = Process("web", [sys.executable, "-m", PROJECT, "runserver", "--noreload", "127.0.0.1:0"], env)
    url = wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+", web.log()), 60, web.log()).group()

    def call(path, method="GET"):
        with urlopen(Request(url + path, method=method), timeout=40) as reply:
            return json.loads(reply.read())

    id_ = call("/invoices/7", "POST")["id"]
    wait_until(lambda: call(f"/results/{id_}")["value"] == "invoice 7 as a PDF, attempt 1", 60, web.log())
