"""The version matrix has each Python of the classifiers, and all its test files exist."""

import re
import tomllib

from .matrix import CORNERS, ROOT, TESTS, TESTS_OF_A_SERVER


def test_each_file_of_the_matrix_exists():
    assert [each for each in (*TESTS, *TESTS_OF_A_SERVER) if not (ROOT / each).exists()] == []


def test_each_classified_python_has_a_required_corner():
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [each.rpartition(" ")[2] for each in classifiers if re.search(r"Python :: 3\.\d+$", each)]
    assert named == [corner.python for corner in CORNERS if not corner.may_fail]
