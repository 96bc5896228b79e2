"""Run `celery affinity ...` in the test's process, since a separate process takes a second of CPU time."""

import importlib
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from celery import _state
from celery.bin.celery import celery
from click.testing import CliRunner
from kombu.pools import ProducerPool

from .apps import APP, apps_stay_here
from .processes import run_celery


def affinity(url, *words, app=APP, **env):
    """Run the command with a new import of *app* on the broker at *url*; return its output and its exit code."""
    with pytest.MonkeyPatch.context() as patch, apps_stay_here():
        for name, value in _environment(url, env).items():
            patch.setenv(name, value)
        built_in = {each for each in _state._on_app_finalizers if each.__module__ == "celery.app.builtins"}
        patch.setattr(_state, "_on_app_finalizers", built_in)  # the shared tasks of other tests are not this app's
        patch.setenv("CELERY_BROKER_URL", url)  # Celery sets it, to the value of BROKER_URL, for the whole process
        package, _, module = app.rpartition(".")
        of_package = vars(importlib.import_module(package)) if package else {}
        for owner, name in ((sys.modules, app), (of_package, module)):
            patch.setitem(owner, name, None)  # restores the item afterwards, even if it was missing
            del owner[name]
        with _connections_of_its_own(importlib.import_module(app).app):
            done = CliRunner().invoke(celery, ["-A", app, "affinity", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


@contextmanager
def _connections_of_its_own(app):
    """Give *app* a separate connection pool, since all apps with one broker share kombu's pools."""
    app._pool = app.connection_for_write().Pool(limit=2)
    app.amqp._producer_pool = ProducerPool(app._pool, limit=2)
    try:
        yield
    finally:
        app._pool.force_close_all()


def affinity_process(url, *words, app=APP, **env):
    """Run the command in a separate process; return its output and its exit code."""
    return run_celery("-A", app, "affinity", *words, env={**os.environ, **_environment(url, env)}, timeout=30)


def _environment(url, env):
    return {"BROKER_URL": url, "LEDGER": os.devnull, **env}
