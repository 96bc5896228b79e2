"""CONTRIBUTING leads to files that exist: every room is on its map, and every file that a page names is there."""

import re

from celery_affinity.lua.library import FUNCTION_NAMES

from ..support.processes import ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PACKAGE = ROOT / "celery_affinity"
ROOMS = {each.parent.name for each in PACKAGE.glob("*/__init__.py")}

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: Files that pages tell users to write, beside the files that a page shows.
USERS_OWN = {"shop.py", "proj.py", "celeryconfig.py"}


def rows():
    """Return the rows of the map: package, files to read first, folders of its tests."""
    for room, first, tests in re.findall(
        r"^\| `(\w+)`[^|]*\| (`celery_affinity/.*) \| (.*) \|$", CONTRIBUTING, re.MULTILINE
    ):
        yield room, re.findall("`([^`]+)`", first), re.findall("`([^`]+)`", tests)


def test_the_map_shows_every_room_and_no_other():
    assert {room for room, *_ in rows()} == ROOMS


def test_each_room_has_a_file_to_read_first_and_tests():
    for room, first, tests in rows():
        assert first[0].startswith(f"celery_affinity/{room}/"), room
        assert tests, room
        for each in (*first, *tests):
            assert (ROOT / each).exists(), f"{room}: {each}"


def test_what_is_to_be_run_is_there():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([\w-]+)", CONTRIBUTING)) <= targets
    for arguments in re.findall(r"ARGS=(?:\"([^\"]+)\"|([\w/.]+))", CONTRIBUTING):
        for path in re.findall(r"tests/[\w/.]*", " ".join(arguments)):
            assert (ROOT / path).exists(), path


def _known():
    """Return the paths of all files of the repository's own folders."""
    folders = ("celery_affinity", "tests", "docs", "examples", "benchmarks")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".lua")]
    return {f"/{path.relative_to(ROOT)}" for path in paths}


def test_each_name_stands_in_the_file_that_it_is_looked_for_in():
    pages = CONTRIBUTING + (ROOT / "docs/internals/life-of-a-call.md").read_text()
    named = re.findall(r"`([\w.]+)` in\s+`((?:celery_affinity|tests)/[\w/]+\.(?:py|lua))`", pages)
    assert len(named) > 25
    assert [(name, path) for name, path in named if name.split(".")[-1] not in (ROOT / path).read_text()] == []


def test_every_file_that_a_page_names_exists(subtests):
    for page in PAGES:
        with subtests.test(str(page)):
            known = _known()
            text = page.read_text()
            shown = set(re.findall(r"^```\w+ (\S+\.py)$", text, re.MULTILINE))  # files that the reader writes
            named = set(re.findall(r"`([\w/]+\.(?:py|lua))`", text)) - shown - USERS_OWN
            assert {each for each in named if not any(path.endswith(f"/{each}") for path in known)} == set()
            folders = set(re.findall(r"`((?:celery_affinity|tests|docs|examples|benchmarks)/[\w/]*)`", text))
            assert {each for each in folders if not (ROOT / each).exists()} == set()


def test_the_page_of_the_server_functions_names_every_function():
    page = (ROOT / "docs/reference/functions.md").read_text()
    named = {name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named == set(FUNCTION_NAMES)
