"""`jobs.values` reads a job's arguments and result from its message and the result backend."""

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


def test_values_show_the_senders_argsrepr_and_kwargsrepr(fleet, jobs, app):
    task = app.tasks[f"{APP}.pdf"]
    shown = task.apply_async(("a.pdf",), {"seconds": 0.5})
    secret = task.apply_async(("s3cret",), {"seconds": 0.5}, argsrepr="(***)", kwargsrepr="{***}")
    assert jobs.values(shown.id) == JobValues(args="('a.pdf',)", kwargs="{'seconds': 0.5}")
    assert jobs.values(secret.id) == JobValues(args="(***)", kwargs="{***}")
    shown.forget()
    secret.forget()


@pytest.mark.parametrize("message", ["", "[]", "no JSON", '{"headers": 7}', '{"headers": {"argsrepr": 7}}'])
def test_invalid_message_has_no_values(fleet, jobs, message):
    fleet.publish("job", "pdf", message=message)
    assert jobs.values("task-job") == NOTHING


def test_result_is_a_json_value_or_its_repr(jobs, app, fleet):
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    pages = {"pages": [1, 2.5, None]}
    for task, result, shown in (("a", pages, pages), ("b", None, None), ("c", moment, repr(moment))):
        app.backend.store_result(task, result, "SUCCESS")
        assert jobs.values(task) == JobValues(status="SUCCESS", result=shown)


@pytest.mark.parametrize("result", [float("nan"), {1: float("inf")}, {(1, 2): 3}, object, [b"\xff"]])
def test_any_backend_value_becomes_strict_json(jobs, app, fleet, monkeypatch, result):
    monkeypatch.setattr(app.backend, "get_task_meta", lambda _: {"status": "SUCCESS", "result": result})
    json.dumps(jobs.values("task").result, allow_nan=False)


def test_oversized_result_is_replaced_by_a_note(jobs, app, fleet):
    app.backend.store_result("task", "x" * _MAX_RESULT_LENGTH, "SUCCESS")
    values = jobs.values("task")
    assert values.result is None
    assert values.note == "the result has 1,000,002 characters, of which 1,000,000 at most are shown"


@pytest.mark.parametrize("status", ["FAILURE", "RETRY"])
def test_failed_result_includes_its_traceback(jobs, app, fleet, status):
    app.backend.store_result("task", ValueError("no page"), status, traceback="Traceback: here")
    assert jobs.values("task") == JobValues(status=status, error="ValueError: no page", traceback="Traceback: here")


def test_extended_result_supplies_arguments_without_a_message(jobs, app, fleet, monkeypatch):
    meta = {"status": "SUCCESS", "result": 7, "args": ["a.pdf"], "kwargs": {"seconds": 1}}
    monkeypatch.setattr(app.backend, "get_task_meta", lambda _: meta)
    values = jobs.values("task")
    assert (values.args, values.kwargs, values.result) == ("['a.pdf']", "{'seconds': 1}", 7)
    fleet.publish("job", "pdf", message=json.dumps({"headers": {"argsrepr": "(***)"}}))
    assert jobs.values("task-job").args == "(***)"


def test_started_task_has_no_result(jobs, app, fleet):
    app.backend.store_result("task", {"pid": 7, "hostname": "here"}, "STARTED")
    assert jobs.values("task") == JobValues(status="STARTED")


def test_missing_or_failing_backend_is_noted(jobs, app, fleet, monkeypatch, valkey):
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
def test_roles_at_or_above_the_setting_see_values(to):
    app = Celery("said", broker="redis://", set_as_current=False)
    assert hidden_reason(app, "admin") is None, "without the setting"
    assert hidden_reason(app, "submit")
    app = Celery("said", broker="redis://", set_as_current=False)
    app.conf.affinity_show_values_to = to
    sees = [role for role in ROLES if hidden_reason(app, role) is None]
    assert sees == (list(ROLES[SHOWN_TO.index(to) :]) if to != "nobody" else [])
    assert (hidden_reason(app) is None) == (to != "nobody"), "commands"
