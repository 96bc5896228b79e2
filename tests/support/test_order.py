"""The order in which a run of several processes has the tests."""

from pathlib import Path

from .order import dealt

MODULES = [Path("tests", *path.split("/")) for path in ("cli/a", "cli/b", "worker/a", "worker/b", "worker/c")]


def test_each_process_begins_with_what_takes_long():
    found = [str(path.relative_to("tests")) for path in dealt(MODULES, 2)]
    assert found == ["worker/a", "worker/c", "cli/b", "worker/b", "cli/a"]


def test_every_module_has_its_turn_whatever_the_number_of_processes():
    for processes in range(1, 9):
        assert sorted(dealt(MODULES, processes)) == MODULES
