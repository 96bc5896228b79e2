"""What a job was called with, and what came of it, as far as its message and the result backend have it."""

import json
from datetime import UTC, datetime

import pytest
from celery import Celery

import celery_affinity
from celery_affinity.admin.job_values import _MAX_RESULT_LENGTH, JobValues, hidden_reason
from celery_affinity.settings.table import SHOWN_TO
from celery_affinity.web.auth import ROLES

from ..support.apps import APP, app_for

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery

NOTHING = JobValues()


def test_arguments_are_those_that_the_sender_wrote_for_people(fleet, jobs, app):
    task = app.tasks[f"{APP}.pdf"]
    shown = task.apply_async(("a.pdf",), {"seconds": 0.5})
    secret = task.apply_async(("s3cret",), {"seconds": 0.5}, argsrepr="(***)", kwargsrepr="{***}")
    assert jobs.values(shown.id) == JobValues(args="('a.pdf',)", kwargs="{'seconds': 0.5}")
    assert jobs.values(secret.id) == JobValues(args="(***)", kwargs="{***}")
    shown.forget()
    secret.forget()


@pytest.mark.parametrize("message", ["", "[]", "no JSON", '{"headers": 7}', '{"headers": {"argsrepr": 7}}'])
def test_a_message_of_anybody_makes_no_error(fleet, jobs, message):
    fleet.publish("job", "pdf", message=message)
    assert jobs.values("task-job") == NOTHING


def test_a_result_is_as_json_has_it_and_else_a_text(jobs, app, fleet):
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    pages = {"pages": [1, 2.5, None]}
    for task, result, shown in (("a", pages, pages), ("b", None, None), ("c", moment, repr(moment))):
        app.backend.store_result(task, result, "SUCCESS")
        assert jobs.values(task) == JobValues(status="SUCCESS", result=shown)


@pytest.mark.parametrize("result", [float("nan"), {1: float("inf")}, {(1, 2): 3}, object, [b"\xff"]])
def test_any_value_of_a_backend_becomes_json_that_others_can_read(jobs, app, fleet, monkeypatch, result):
    monkeypatch.setattr(app.backend, "get_task_meta", lambda _: {"status": "SUCCESS", "result": result})
    json.dumps(jobs.values("task").result, allow_nan=False)


def test_a_result_that_is_too_long_is_not_shown_and_that_is_said(jobs, app, fleet):
    app.backend.store_result("task", "x" * _MAX_RESULT_LENGTH, "SUCCESS")
    found = jobs.values("task")
    assert found.result is None
    assert found.note == "the result has 1,000,002 characters, of which 1,000,000 at most are shown"


@pytest.mark.parametrize("status", ["FAILURE", "RETRY"])
def test_an_exception_comes_with_its_traceback(jobs, app, fleet, status):
    app.backend.store_result("task", ValueError("no page"), status, traceback="Traceback: here")
    assert jobs.values("task") == JobValues(status=status, error="ValueError: no page", traceback="Traceback: here")


def test_the_arguments_of_a_job_whose_message_is_gone_are_those_of_an_extended_result(jobs, app, fleet, monkeypatch):
    meta = {"status": "SUCCESS", "result": 7, "args": ["a.pdf"], "kwargs": {"seconds": 1}}
    monkeypatch.setattr(app.backend, "get_task_meta", lambda _: meta)
    found = jobs.values("task")
    assert (found.args, found.kwargs, found.result) == ("['a.pdf']", "{'seconds': 1}", 7)
    fleet.publish("job", "pdf", message=json.dumps({"headers": {"argsrepr": "(***)"}}))
    assert jobs.values("task-job").args == "(***)"


def test_the_running_of_a_task_is_no_result(jobs, app, fleet):
    app.backend.store_result("task", {"pid": 7, "hostname": "here"}, "STARTED")
    assert jobs.values("task") == JobValues(status="STARTED")


def test_a_backend_that_fails_or_is_missing_is_said(jobs, app, fleet, monkeypatch, valkey):
    def broken(_):
        raise RuntimeError("password")

    monkeypatch.setattr(app.backend, "get_task_meta", broken)
    assert jobs.values("task") == JobValues(note="the result backend gave no answer: RuntimeError")
    monkeypatch.setattr(app.backend, "get_task_meta", lambda _: None)
    assert jobs.values("task") == JobValues(note="the result backend gave no answer: TypeError")
    misspelt = app_for(valkey.url, result_backend="redsi://")
    assert celery_affinity.jobs(misspelt).values("task").note.startswith("the result backend gave no answer: ")
    misspelt.close()
    none = app_for(valkey.url)
    assert celery_affinity.jobs(none).values("task") == JobValues(note="the app has no result backend")
    none.close()


@pytest.mark.parametrize("to", SHOWN_TO)
def test_a_role_sees_values_if_it_has_the_rights_of_the_role_that_is_set(to):
    app = Celery("said", broker="redis://", set_as_current=False)
    assert hidden_reason(app, "admin") is None, "without the setting"
    assert hidden_reason(app, "submit")
    app = Celery("said", broker="redis://", set_as_current=False)
    app.conf.affinity_show_values_to = to
    sees = [role for role in ROLES if hidden_reason(app, role) is None]
    assert sees == (list(ROLES[SHOWN_TO.index(to) :]) if to != "nobody" else [])
    assert (hidden_reason(app) is None) == (to != "nobody"), "commands"
