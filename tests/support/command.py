"""`celery affinity ...` as a user runs it."""

import os
import subprocess
import sys

from .apps import APP


def affinity(url, *words, app=APP, **env):
    """Run the command of *app* on the broker at *url*; return its output and its exit code."""
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", app, "affinity", *words],
        env={**os.environ, "BROKER_URL": url, "LEDGER": os.devnull, **env},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
