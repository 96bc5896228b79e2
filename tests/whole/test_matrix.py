"""The matrix of versions has each Python of the classifiers, and runs tests that are there.

A file that was moved would leave all corners without a result.
"""

import re
import tomllib

from .matrix import CORNERS, ROOT, TESTS, TESTS_OF_A_SERVER


def test_each_file_that_the_matrix_runs_is_there():
    assert [each for each in (*TESTS, *TESTS_OF_A_SERVER) if not (ROOT / each).exists()] == []


def test_each_python_of_the_classifiers_has_a_corner_that_must_not_fail():
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [each.rpartition(" ")[2] for each in classifiers if re.search(r"Python :: 3\.\d+$", each)]
    assert named == [corner.python for corner in CORNERS if not corner.may_fail]
