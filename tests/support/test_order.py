from pathlib import Path

from .order import dealt

MODULES = [Path("tests", *path.split("/")) for path in ("cli/a", "cli/b", "worker/a", "worker/b", "worker/c")]


def test_each_process_begins_with_long_tests():
    order = [str(path.relative_to("tests")) for path in dealt(MODULES, 2)]
    assert order == ["worker/a", "worker/c", "cli/b", "worker/b", "cli/a"]


def test_dealt_keeps_all_modules_for_any_number_of_processes():
    for processes in range(1, 9):
        assert sorted(dealt(MODULES, processes)) == MODULES
