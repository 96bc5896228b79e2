"""Read-only folders that take long to create: created once per test run, shared by all its processes."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the run's folder *name*. The first process that needs it fills it with *make*."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each process has a subfolder of the run's folder
    folder = base / name
    with (base / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.fstat(lock.fileno()).st_size:
            shutil.rmtree(folder, ignore_errors=True)  # incomplete: another process failed
            folder.mkdir()
            make(folder)
            lock.write("made")
    return folder
