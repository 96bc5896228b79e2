"""The version matrix has each Python of the classifiers, and all its test files exist."""

import os
import re
import subprocess
import sys
import tomllib

import pytest

from .matrix import CORNERS, ROOT, TESTS, TESTS_OF_A_SERVER

_IMPORT_ALL = """
import importlib, kombu, pkgutil, celery_affinity
for module in pkgutil.walk_packages(celery_affinity.__path__, "celery_affinity."):
    if not module.name.startswith("celery_affinity.contrib."):  # these need frameworks
        importlib.import_module(module.name)
print(kombu.__version__)
"""


def test_each_file_of_the_matrix_exists():
    assert [each for each in (*TESTS, *TESTS_OF_A_SERVER) if not (ROOT / each).exists()] == []


def test_each_classified_python_has_a_required_corner():
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [each.rpartition(" ")[2] for each in classifiers if re.search(r"Python :: 3\.\d+$", each)]
    assert named == [corner.python for corner in CORNERS if not corner.may_fail]


@pytest.mark.whole
@pytest.mark.parametrize("corner", [each for each in CORNERS if each.pins], ids=lambda corner: corner.name)
def test_every_module_imports_with_the_pinned_versions(corner, tmp_path):
    pins = [pin for pin in corner.pins if pin.startswith(("celery", "kombu", "redis"))]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path, *pins]
    subprocess.run(pip, check=True, timeout=200)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _IMPORT_ALL],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("5.5.", "5.6."))
