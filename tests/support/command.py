"""`celery affinity ...`, in the test's own process: a process of its own takes a second of CPU time."""

import os
import subprocess
import sys

import pytest
from celery.bin.celery import celery
from click.testing import CliRunner

from .apps import APP, apps_stay_here, forget_connections
from .processes import run_celery


def affinity(url, *words, app=APP, **env):
    """Run the command with a new import of *app*, for the broker at *url*. Return its output and its exit code."""
    with pytest.MonkeyPatch.context() as patch, apps_stay_here():
        for name, value in _environment(url, env).items():
            patch.setenv(name, value)
        patch.setenv("CELERY_BROKER_URL", url)  # Celery sets it, to the value of BROKER_URL, for the whole process
        package, _, module = app.rpartition(".")
        patch.delitem(sys.modules, app, raising=False)
        if package:
            patch.delattr(sys.modules.get(package), module, raising=False)  # kombu looks there first
        done = CliRunner().invoke(celery, ["-A", app, "affinity", *words])
        imported = sys.modules.get(app)
        if imported is not None:
            forget_connections(imported.app)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def affinity_process(url, *words, app=APP, **env):
    """Run the command as a user runs it, in a process of its own. Return its output and its exit code."""
    return run_celery("-A", app, "affinity", *words, env={**os.environ, **_environment(url, env)}, timeout=30)


def _environment(url, env):
    return {"BROKER_URL": url, "LEDGER": os.devnull, **env}
