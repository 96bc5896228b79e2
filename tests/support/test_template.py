"""Which commands are forked of the template, and which get an interpreter of their own."""

import sys

import pytest

from .processes import ROOT
from .template import may_fork

WORKER = [sys.executable, "-m", "celery", "worker"]


def test_a_worker_is_forked_whose_app_is_in_a_folder_of_the_test(tmp_path):
    (tmp_path / "shop.py").touch()
    assert may_fork(WORKER, {})
    assert may_fork(WORKER, {"PYTHONPATH": f"{tmp_path}:{ROOT}"})


@pytest.mark.parametrize("name", ["celery_affinity", "opentelemetry", "sitecustomize.py"])
def test_a_folder_with_what_the_template_has_of_elsewhere_needs_an_interpreter(tmp_path, name):
    (tmp_path / name).touch()
    assert not may_fork(WORKER, {"PYTHONPATH": str(tmp_path)})


@pytest.mark.parametrize("words", [["-P", "gevent"], ["-P", "eventlet"], ["flower"]])
def test_what_changes_modules_before_they_are_loaded_needs_an_interpreter(words):
    assert not may_fork([*WORKER, *words], {})


def test_another_program_needs_an_interpreter():
    assert not may_fork([sys.executable, "-m", "examples.routes"], {})
