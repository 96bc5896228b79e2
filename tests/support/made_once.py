"""What takes long to make and is only looked at: made once in a run of tests, however many processes it has."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder *name* of the whole run, which *make* has filled: the first process to ask calls it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each process has a folder of its own in that of the run
    folder = base / name
    with (base / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.fstat(lock.fileno()).st_size:
            shutil.rmtree(folder, ignore_errors=True)  # half made: another process has failed
            folder.mkdir()
            make(folder)
            lock.write("made")
    return folder
