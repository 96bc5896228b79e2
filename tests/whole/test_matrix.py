"""The matrix of versions runs tests that are there: a file that was moved would leave all corners without a result."""

from .matrix import ROOT, TESTS


def test_each_file_that_the_matrix_runs_is_there():
    assert [each for each in TESTS if not (ROOT / each).is_file()] == []
