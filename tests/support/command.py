"""`celery affinity ...` as a user runs it."""

import os

from .apps import APP
from .processes import run_celery


def affinity(url, *words, app=APP, **env):
    """Run the command of *app* on the broker at *url*; return its output and its exit code."""
    env = {**os.environ, "BROKER_URL": url, "LEDGER": os.devnull, **env}
    return run_celery("-A", app, "affinity", *words, env=env, timeout=30)
