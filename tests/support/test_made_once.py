"""What is made once in a run is made by the first who asks, and again only if that failed."""

import pytest

from .made_once import made_once


@pytest.fixture
def name(tmp_path):
    return f"made-by-{tmp_path.name}"


def test_the_second_who_asks_finds_what_the_first_has_made(tmp_path_factory, name):
    made = []

    def make(folder):
        made.append(folder)
        (folder / "text").write_text("first")

    folder = made_once(tmp_path_factory, name, make)
    assert made_once(tmp_path_factory, name, make) == folder
    assert (folder / "text").read_text() == "first"
    assert made == [folder]


def test_what_could_not_be_made_is_made_anew_by_the_next(tmp_path_factory, name):
    def fail(folder):
        (folder / "half").touch()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        made_once(tmp_path_factory, name, fail)
    folder = made_once(tmp_path_factory, name, lambda folder: (folder / "whole").touch())
    assert [each.name for each in folder.iterdir()] == ["whole"]
