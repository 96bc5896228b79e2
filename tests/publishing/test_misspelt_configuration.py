"""Misspelt options of routes, annotations and `beat_schedule`, and how scripts, workers and `check` report them."""

import json
import os
import re
import sys

import pytest
from celery.beat import Scheduler as Beat
from celery.beat import SchedulingError
from kombu.exceptions import OperationalError

from celery_affinity.check import Facts
from celery_affinity.check.app import misspelt_options
from celery_affinity.check.facts import gather_app
from celery_affinity.publishing.validation import check_app

from ..support.misspellings import NOWHERE, refused, task
from ..support.processes import Process, run_celery, start_worker

APP = "tests.support.apps.spelt"


def misspelt(app):
    """Return the misspelt options that `check` finds in *app*."""
    return tuple(finding.what for finding in misspelt_options.findings(Facts(gather_app(app))))


@pytest.mark.parametrize(
    ("routes", "where"),
    [
        ({"shop.render": {"affinty": "pdf"}}, "task_routes 'shop.render'"),
        ({"shop.*": {"queue": "pdf", "affinty": "pdf"}}, "task_routes 'shop.*'"),
        ([{"bank.*": {"queue": "b"}}, {"shop.*": {"affinty": "pdf"}}], "task_routes 'shop.*'"),
        ([[("bank.*", {"queue": "b"}), ("shop.*", {"affinty": "pdf"})]], "task_routes 'shop.*'"),
        ({re.compile(r"shop\..*"): {"affinty": "pdf"}}, r"task_routes 'shop\\..*'"),
        (({"bank.*": "b"}, {"shop.*": {"affinty": "pdf"}}), "task_routes 'shop.*'"),
    ],
)
def test_misspelt_option_of_a_route_is_found(new_app, routes, where):
    app = new_app(task_routes=routes)
    words = f"{where}: unknown option 'affinty'; did you mean 'affinity'?"
    for call in (task(app).delay, lambda: app.send_task("shop.render")):
        with refused(words):
            call()
    with refused(words):
        check_app(app)
    assert misspelt(app) == (words,)
    with pytest.raises(OperationalError):
        app.send_task("bank.other")


def test_options_from_a_router_are_checked_when_returned(new_app):
    app = new_app(task_routes=[lambda name, *_, **__: {"afinity": "pdf"} if name == "shop.render" else None])
    with refused(
        "call of task shop.render, or what a router of task_routes returns for it: unknown option 'afinity'; did you"
    ):
        task(app).delay()
    with pytest.raises(OperationalError):
        task(app, "shop.other").delay()
    assert misspelt(app) == ()


@pytest.mark.parametrize("annotations", [{"*": {"affinty": "pdf"}}, [{"shop.render": {"affinty": "pdf"}}]])
def test_misspelt_option_of_an_annotation_is_found(new_app, annotations):
    app = new_app(task_annotations=annotations)
    render = task(app)
    (pattern,) = annotations if isinstance(annotations, dict) else annotations[0]
    words = f"task_annotations {pattern!r}: unknown option 'affinty'; did you mean 'affinity'?"
    with refused(words):
        render.delay()
    with refused(words):
        check_app(app)
    assert misspelt(app) == (words,)


def test_misspelt_option_of_a_beat_entry_is_found(new_app):
    entry = {"task": "shop.far", "schedule": 9.0}
    app = new_app(
        beat_schedule={
            "nightly": {**entry, "options": {"affinty": "pdf", "expires": 5}},
            "hourly": {**entry, "options": {"on_demnd": True}},
            "daily": {**entry, "options": {"affinity": "pdf", "my_flag": 1}},
            "plain": entry,
            "odd": {**entry, "options": None},
        }
    )
    assert misspelt(app) == (
        "beat_schedule entry 'nightly': unknown option 'affinty'; did you mean 'affinity'?",
        "beat_schedule entry 'hourly': unknown option 'on_demnd'; did you mean 'on_demand'?",
    )
    beat = Beat(app=app)
    with pytest.raises(SchedulingError, match="unknown option 'affinty'; did you mean 'affinity'"):
        beat.apply_async(beat.schedule["nightly"], advance=False)


def test_any_priority_is_valid_for_unscheduled_queues(new_app):
    app = new_app(affinity_queues=["pdf"], task_routes={"shop.*": {"queue": "mail", "priority": 99}})
    task(app, priority=99).s().set(priority=77)
    check_app(app)
    assert gather_app(app).refused == []


# -- the user's view


def run(url, program, **env):
    """Run a program of one process without any set-up. Return its output to both streams."""
    process = Process("script", [sys.executable, "-c", program], {"BROKER_URL": url, **env})
    process.wait(60)
    return process.log()


def test_script_without_our_imports_fails_at_the_call():
    program = f"import {APP} as tasks\nprint('imported')\ntasks.wrong.delay()"
    said = run(NOWHERE, program, OPTIONS='{"affinty": "pdf"}')
    assert said.startswith("imported")
    assert "OptionError: task wrong: unknown option 'affinty'; did you mean 'affinity'?" in said
    said = run(NOWHERE, f"import {APP} as tasks\ntasks.shared.delay()", SHARED='{"afinity": "pdf"}')
    assert "OptionError: task shared: unknown option 'afinity'; did you mean 'affinity'?" in said


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"OPTIONS": {"affinty": "pdf"}}, "task wrong: unknown option 'affinty'; did you mean 'affinity'?"),
        ({"SHARED": {"afinity": "pdf"}}, "task shared: unknown option 'afinity'; did you mean 'affinity'?"),
        ({"OPTIONS": {"affinity": "a,b"}}, "task wrong: affinity must be the name of a queue that -Q can give"),
        (
            {"CONF": {"task_routes": {"far.*": {"ondemand": True}}}},
            "celery_affinity: task_routes 'far.*': unknown option 'ondemand'; did you mean 'on_demand'?",
        ),
        (
            {"CONF": {"task_annotations": {"wrong": {"affinty": "x"}}}},
            "celery_affinity: task_annotations 'wrong': unknown option 'affinty'; did you mean 'affinity'?",
        ),
    ],
)
def test_worker_does_not_start_with_a_misspelt_option(env, words):
    worker = start_worker(APP, NOWHERE, (), pool="solo", env={name: json.dumps(each) for name, each in env.items()})
    assert worker.wait(60) == 1
    assert words in worker.log()


def test_worker_with_another_transport_starts_with_it(valkey, redis_client):
    worker = start_worker(
        APP,
        valkey.url,
        (),
        pool="solo",
        env={"TRANSPORT": "redis", "OPTIONS": '{"affinty": 1}', "SHARED": '{"afinity": 1}'},
    )
    worker.wait_ready(30)


def test_check_names_the_entry(valkey, redis_client):
    conf = {"beat_schedule": {"nightly": {"task": "good", "schedule": 9.0, "options": {"affinty": "pdf"}}}}
    found = run_celery(
        "-A",
        APP,
        "affinity",
        "check",
        "--no-fleet",
        "--json",
        env={
            **os.environ,
            "BROKER_URL": valkey.url,
            "CONF": json.dumps(conf),
            "OPTIONS": '{"afinity": 1}',
        },
    )
    assert found.returncode == 2, found.stderr
    said = [each["what"] for each in json.loads(found.stdout)["findings"] if each["id"] == "option-misspelt"]
    assert said == [
        "task wrong: unknown option 'afinity'; did you mean 'affinity'?",
        "beat_schedule entry 'nightly': unknown option 'affinty'; did you mean 'affinity'?",
    ]
