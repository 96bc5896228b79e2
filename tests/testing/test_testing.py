"""The fixtures for users' tests, in pytest runs like a user's."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points

import psutil
import pytest
from celery import Celery

from celery_affinity import AffinityError
from celery_affinity.testing.app import directed, load_app

from ..support.pages import blocks
from ..support.processes import ROOT, wait_until

PYTEST = [sys.executable, "-m", "pytest", "--verbose", "-p", "no:cacheprovider"]
ENVIRONMENT = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins installed for other tests cost seconds


def run_pytest(directory, *options):
    done = subprocess.run(
        [*PYTEST, *options], cwd=directory, capture_output=True, text=True, timeout=100, check=False, env=ENVIRONMENT
    )
    return done.stdout + done.stderr


def project(directory, **tests):
    """Write the app and the conftest of the page about testing, and *tests*."""
    page = blocks("docs/how-to/testing.md")
    for name in ("shop.py", "conftest.py"):
        (directory / name).write_text(page[name])
    for name, body in tests.items():
        (directory / f"{name}.py").write_text(f"import os, shop, pytest, time\n\n{body}")
    return directory


def test_examples_of_the_testing_page_pass(tmp_path):
    for name, body in blocks("docs/how-to/testing.md").items():
        (tmp_path / name).write_text(body)
    assert "8 passed" in run_pytest(tmp_path)


def test_fixtures_work_in_a_users_test_run():
    # A user's tests do not have our conftest.
    options = ["--noconftest", "-c", os.devnull, "--rootdir", ROOT, "-p", "celery_affinity.testing"]
    output = run_pytest(ROOT, *options, "tests/support/apps/users_tests.py")
    assert re.search(r"^=+ 14 passed", output, re.M), output


def test_fixtures_raise_no_warnings(tmp_path):
    body = """
kept = []

def test_results_that_outlive_the_test(affinity_worker):
    affinity_worker("pdf")
    kept.extend(shop.render.delay("invoice") for _ in range(2))
    assert kept[0].get(timeout=10)

def test_a_failure(affinity_worker_process):
    affinity_worker_process("pdf")
    assert shop.render.delay("invoice").get(timeout=10) == "something else"

def test_results_that_outlive_the_server(affinity_server):
    affinity_server.stop()
    kept.clear()
"""
    # A warning of Celery itself, which stores results with a deprecated call of redis-py.
    options = ["-W", "error", "-W", "ignore:Call to deprecated setex:DeprecationWarning"]
    output = run_pytest(project(tmp_path, test_it=body), *options)
    assert "1 failed, 2 passed" in output
    assert "Unraisable" not in output
    assert re.search(r"-- log of process-1@.* --", output), "the log of the worker of the failed test is shown"
    assert "succeeded in" in output


def test_missing_app_error_names_the_fixture(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(affinity_worker): pass")
    assert "override the fixture affinity_app" in run_pytest(tmp_path, "-p", "celery_affinity.testing")


def test_workers_end_when_the_test_process_is_killed(tmp_path):
    body = """
def test_it(affinity_worker_process):
    worker = affinity_worker_process("pdf", concurrency=2)
    print("worker", worker.pid, flush=True)
    time.sleep(60)
"""
    project(tmp_path, test_it=body)
    with subprocess.Popen([*PYTEST, "-s"], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as running:
        line = next(line for line in running.stdout if "worker " in line)
        family = psutil.Process(running.pid).children(recursive=True)
        assert int(line.split()[-1]) in {each.pid for each in family}
        running.kill()
    wait_until(lambda: not [each for each in family if each.is_running()], 10, "worker, pool and server have ended")


def test_pytest_does_not_load_the_plugin_by_default():
    assert not [each for each in entry_points(group="pytest11") if each.value.startswith("celery_affinity")]


# -- the app


def ours(**settings):
    return Celery("ours", set_as_current=False, broker_transport="celery_affinity:Transport", **settings)


@pytest.mark.parametrize(
    ("app", "message"),
    [
        (None, "affinity_app must be a Celery app, or what stands after `celery -A`, got: None"),
        ("", "affinity_app must be a Celery app, or what stands after `celery -A`, got: ''"),
        ("no_such", "affinity_app must name an app as `celery -A` does, got: 'no_such': No module named 'no_such'"),
        ("os:path", "affinity_app must name a Celery app, got: 'os:path', which is <module"),
        (
            Celery("stock", set_as_current=False),
            "the app 'stock' must have broker_transport = 'celery_affinity:Transport', got: None",
        ),
    ],
)
def test_invalid_app_is_refused(app, message):
    with pytest.raises(AffinityError, match=re.escape(message)):
        load_app(app)


@pytest.mark.parametrize(
    ("backend", "directed_to"),
    [
        ("redis://production", "redis://test"),
        ("rediss://production", "redis://test"),
        ("sentinel://production", "redis://test"),
        ("valkeys://production", "redis://test"),
        ("valkey-cluster://production", "redis://test"),
        ("rpc://", "rpc://"),
        ("db+sqlite://", "db+sqlite://"),
        (None, None),
    ],
)
def test_redis_result_backends_are_redirected_to_the_test_server(backend, directed_to):
    app = ours(broker_read_url="redis://production", result_backend=backend)
    with directed(app, "redis://test"):
        assert app.conf.broker_read_url == app.conf.broker_write_url == app.conf.broker_url == "redis://test"
        assert app.conf.result_backend == directed_to
    assert (app.conf.broker_read_url, app.conf.result_backend) == ("redis://production", backend)
