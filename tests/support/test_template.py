"""Some commands are forked from the template, and others need a new interpreter."""

import sys

import pytest

from .processes import ROOT
from .template import may_fork

WORKER = [sys.executable, "-m", "celery", "worker"]


def test_worker_with_an_app_in_the_tests_folder_is_forked(tmp_path):
    (tmp_path / "shop.py").touch()
    assert may_fork(WORKER, {})
    assert may_fork(WORKER, {"PYTHONPATH": f"{tmp_path}:{ROOT}"})


@pytest.mark.parametrize("name", ["celery_affinity", "opentelemetry", "sitecustomize.py"])
def test_folder_with_a_loaded_module_needs_an_interpreter(tmp_path, name):
    (tmp_path / name).touch()
    assert not may_fork(WORKER, {"PYTHONPATH": str(tmp_path)})


@pytest.mark.parametrize(
    "command",
    [
        *([*WORKER, *words] for words in (["-P", "gevent"], ["-P", "eventlet"], ["flower"])),
        [sys.executable, "-m", "examples.routes"],
    ],
)
def test_module_patching_and_other_programs_need_an_interpreter(command):
    assert not may_fork(command, {})
