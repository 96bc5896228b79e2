"""The backend for Django's tasks framework passes its tests with the pinned Django, on a newer Python than this one."""

import os
import subprocess

import pytest

from ..support.interpreters import interpreter
from ..support.processes import ROOT
from .environments import python_of

pytestmark = pytest.mark.timeout(900)


def test_contract_tests_pass_with_django_6():
    newer = next(filter(None, map(interpreter, ("3.12", "3.13", "3.14"))), None)
    if newer is None:
        pytest.skip("Django 6 needs Python 3.12 or newer")
    command = [python_of("django_tasks", newer), "-m", "pytest", "-q", "tests/contrib"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env={**env, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "skipped" not in done.stdout
