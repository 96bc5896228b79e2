"""`made_once` creates a folder at the first call, and again only after a failure."""

import pytest

from .made_once import made_once


@pytest.fixture
def name(tmp_path):
    return f"made-by-{tmp_path.name}"


def test_second_call_returns_the_first_calls_folder(tmp_path_factory, name):
    made = []

    def make(folder):
        made.append(folder)
        (folder / "text").write_text("first")

    folder = made_once(tmp_path_factory, name, make)
    assert made_once(tmp_path_factory, name, make) == folder
    assert (folder / "text").read_text() == "first"
    assert made == [folder]


def test_failed_folder_is_created_again_by_the_next_call(tmp_path_factory, name):
    def fail(folder):
        (folder / "half").touch()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        made_once(tmp_path_factory, name, fail)
    folder = made_once(tmp_path_factory, name, lambda folder: (folder / "whole").touch())
    assert [each.name for each in folder.iterdir()] == ["whole"]
