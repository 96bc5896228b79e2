"""Names in settings that mean nothing, and settings that Celery cannot read: found by the command."""

import json
import os

import pytest

from celery_affinity.check import jobs, tenants
from celery_affinity.check.app import _names_without_task
from celery_affinity.check.facts import gather_app
from celery_affinity.check.gather import gather_facts
from celery_affinity.options.affinity import Affinity
from celery_affinity.options.keys import Exclusive
from celery_affinity.reports.type_limits import pause_address
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.bounds import Bound
from celery_affinity.schema.keys import Keys

from ..support.pages import missing_lines
from ..support.processes import run_celery
from ..support.scripted_fleet import ScriptedFleet

#: An app with names that mean nothing, and what `check` prints of them.
APP = """
from celery import Celery

from celery_affinity import Affinity

app = Celery("shop", broker="redis://localhost:6379/0", backend="redsi://localhost:6379/1")
app.conf.broker_transport = "celery_affinity:Transport"
app.conf.task_routes = {"shop.rendr": {"queue": "pfd"}}
app.conf.affinity_reserve = {"excle": {"queued": 1}}
app.conf.affinity_limits = {"type:exel": 4, "custmer:*": 1}


@app.task(name="shop.render", affinity=Affinity("pdf", exclusive="customer:{customer}"))
def render(path, customer): ...


@app.task(name="shop.tabulate", affinity="excel")
def tabulate(path): ...
"""
FINDINGS = """
ERROR   backend-unknown
        result_backend is redsi://localhost:6379/1, and Celery has no result backend 'redsi': did
        you mean redis://? Workers do not start, and calls that want a result fail.
        -> Write redis://, rediss://, sentinel:// or another backend of Celery's, or the path of a
           class.
WARNING task-misspelt
        task_routes 'shop.rendr' matches no task of this app: it has no effect; did you mean
        'shop.render'?
        -> Write the name of the task as the worker's banner shows it, or remove the entry.
WARNING type-misspelt
        Type 'pfd', which task_routes 'shop.rendr' declares, differs only in one letter from 'pdf',
        which live workers serve: to Celery these are different queues.
        -> Write 'pdf' there, or start a worker with -Q 'pfd'.
WARNING reserve-of-no-type
        affinity_reserve['excle'] matches no type that a task declares, a live worker serves, or a
        job waits for: it keeps no slot free; did you mean 'excel'?
        -> Use the spelling of tasks and workers, or remove the reserve.
WARNING limit-of-no-type
        affinity_limits['type:exel'] limits type 'exel', which no task declares, no live worker
        serves, and no job waits for; did you mean 'excel'?
        -> Use the spelling of tasks and workers, or remove the limit.
NOTE    limit-of-no-key
        affinity_limits['custmer:*'] matches no key that rules of this app make (customer:*), and
        none of a job that waits or runs; did you mean 'customer:*'?
        -> Use the spelling of the rules. Keep the limit if calls say such keys themselves.
"""


@pytest.fixture
def fleet(valkey, redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a command of `celery affinity` with an app of the given code."""

    def run(code, *words):
        (tmp_path / "mistakes.py").write_text(code)
        env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"}
        return run_celery("-A", "mistakes", "affinity", *words, env=env)

    return run


def nothing(customer=None):
    pass


def test_misspelt_names_are_findings_with_suggestions(valkey, fleet, run):
    fleet.join("worker", "pdf", "excel")
    done = run(APP.replace("redis://localhost:6379/0", valkey.url), "check")
    assert done.returncode == 2
    assert missing_lines(FINDINGS, done.stdout) == [], done.stdout


def test_settings_with_old_and_new_names_are_a_finding_and_a_line_of_each_command(run):
    code = """
from celery import Celery
app = Celery("shop", broker="redis://localhost:1/0")
app.conf.update(CELERY_RESULT_BACKEND="redis://localhost", task_acks_late=True)
"""
    done = run(code, "check", "--json")
    (finding,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, finding["id"]) == (2, "settings-names")
    assert finding["todo"] == "Rename CELERY_RESULT_BACKEND to result_backend."
    for words in (
        ["status"],
        ["dispatcher"],
        ["web", "--port", "0"],
        ["recurring", "fire", "x"],
        ["metrics", "--once"],
    ):
        done = run(code, *words)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), words
        assert "CELERY_RESULT_BACKEND -> result_backend" in done.stderr


def test_missing_settings_module_is_a_finding(run):
    done = run('from celery import Celery\napp = Celery("shop")\napp.config_from_object("no.such.module")', "check")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "Celery cannot read the settings of this app: No module named 'no'" in " ".join(done.stdout.split())


def test_names_of_tasks_in_each_setting_are_compared_with_the_tasks(new_app):
    app = new_app(
        task_routes=({"shop.rendr": "pdf", "shop.render": "pdf"}, {"far.*": {"queue": "pdf"}, "celery.*": "pdf"}),
        task_annotations={"*": {"priority": 1}, "shop.rnder": {"priority": 1}},
        affinity_task_types={"shop.*": "pdf", "shp.render": "pdf"},
        affinity_task_rules={"shop.rende": {"exclusive": "{customer}"}},
    )
    app.task(nothing, name="shop.render", shared=False)
    assert set(_names_without_task(gather_app(app))) == {
        ("task_routes 'shop.rendr'", "shop.render"),
        ("task_routes 'far.*'", None),
        ("task_annotations 'shop.rnder'", "shop.render"),
        ("affinity_task_types['shp.render']", "shop.render"),
        ("affinity_task_rules['shop.rende']", "shop.render"),
    }


def test_app_without_tasks_accepts_any_task_name(new_app):
    app = new_app(task_routes={"far.*": "pdf"}, affinity_task_types={"far.*": "pdf"})
    assert list(_names_without_task(gather_app(app))) == []


def test_key_patterns_are_collected_except_from_functions(new_app):
    app = new_app(affinity_task_rules={"far.*": {"rate": ("10/s", "rates:{args[0]}")}})
    app.task(nothing, name="shop.render", shared=False, affinity=Affinity("pdf", exclusive="c:{customer}:{task}"))
    found = gather_app(app)
    assert found.refused or jobs._key_patterns(found) == ["c:*:shop.render", "rates:*"]
    app.task(
        nothing, name="shop.any", shared=False, affinity=Affinity("pdf", exclusive=Exclusive(lambda args, kwargs: "x"))
    )
    assert jobs._key_patterns(gather_app(app)) is None


def test_full_queue_is_reported_with_its_pauses(valkey, fleet, new_app):
    fleet.join("worker", "pdf", "mail", slots=0)
    app = new_app(valkey.url, affinity_max_pending={"pdf": 2, "mail": Bound(5, full="drop-oldest")})
    for number in range(2):
        fleet.publish(f"job{number}", "pdf")
        fleet.publish(f"mail{number}", "mail")
    (full,) = jobs.bound_full.findings(gather_facts(app))
    assert full.what.startswith("2 jobs of type 'pdf' wait, of at most 2 (affinity_max_pending): further calls are ref")
    assert "paused" not in full.what
    fleet.scheduler.pause(pause_address("type", "pdf"), why="db migration")
    fleet.scheduler.pause(pause_address("type", "mail"))
    fleet.scheduler.pause(pause_address("all", ""))
    (full,) = jobs.bound_full.findings(gather_facts(app))
    pauses = full.what.partition("because ")[2].removesuffix(".").split("; ")
    assert set(pauses) == {"all types are paused", "type 'pdf' is paused: db migration"}


def test_limit_of_an_existing_jobs_key_is_in_use(valkey, fleet, new_app):
    fleet.join("worker", "pdf")
    app = new_app(valkey.url, affinity_limits={"customer:*": 1, "custmer:*": 1, "type:pdf": 1})
    for number in range(2):
        fleet.publish(f"job{number}!", "pdf", rules="key=customer%3A7 limit=1")
    assert gather_facts(app).fleet.limits_in_use == ("customer:*",)


def test_tenant_minimums_and_misspelt_names_are_gathered(valkey, fleet, new_app):
    app = new_app(valkey.url)
    fleet.scheduler.configure({"tenants": "acmee=max:3,min:2 big=max:none,min:4 *=max:9,min:1"})
    fleet.join("worker", "pdf", slots=5)
    for number, tenant in enumerate(("acme", "big", "other")):
        fleet.publish(f"job{number}$", "pdf", rules=f"key=tenant%3A{tenant} quota=settings")
    fleet.publish("busy", "pdf")
    fleet.publish("more", "pdf")
    for tenant in ("acme", "big"):
        fleet.publish(f"waits-{tenant}$", "pdf", rules=f"key=tenant%3A{tenant} quota=settings")
    facts = gather_facts(app)
    assert facts.fleet.minima == {"acmee": 2, "big": 4}
    (promised,) = tenants.minima_of_tenants.findings(facts)
    assert "promises 6 slots in all (min), and the fleet has 5:" in promised.what
    (misspelt,) = tenants.tenant_misspelt.findings(facts)
    assert "has a quota for 'acmee'" in misspelt.what
    assert "did you mean 'acme'" in misspelt.what
