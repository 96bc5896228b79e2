"""A room of the reference has the names of its twin in Lua: what a function does there is found by its name here."""

import ast
import re
from importlib.resources import files
from pathlib import Path

from celery_affinity import lua
from celery_affinity.lua.library import FUNCTION_NAMES
from tests.conformance.reference.reference import Reference
from tests.conformance.stories import STAGE

REFERENCE, LUA = Path(__file__).parent / "reference", Path(str(files(lua)))
#: Arrows without a twin in the reference, whose state is never spoiled.
WITHOUT_REFERENCE = {"repair", "record"}

ROOMS = sorted(
    path.name for path in LUA.iterdir() if path.is_dir() and path.name not in {"functions", *WITHOUT_REFERENCE}
)
ARROW_FILES = sorted(path for path in (REFERENCE / "functions").glob("*.py") if path.stem != "__init__")
TWINS = sorted(
    path for path in REFERENCE.glob("*.py") if path.stem not in {"__init__", "reference", "model", "replies"}
)

#: Functions without a twin. Scripts find while reading whether there is a choice, read settings one by one, have one
#: arrow for two methods now and then, and find in lanes what the reference finds by rules.
ONLY_IN_PYTHON = {"has_choice", "slots_that_fit", "get", "weights", "revoke_stamped", "leave_to_others"}
ONLY_IN_PYTHON |= {
    "standing",
    "standing_ids",
    "standing_of",
    "keys_waited_for",
    "waiting",
    "holders",
    "coming",
    "sublane_of",
    "goes_first",
    "key_of",
    "start_of",
    "may_be_ahead",
    "is_unbounded",
    "limit_of",
    "end_pause",
    "gain",
    "limits_in",
    "in_force",
    "keep_s",
    "tenant_of",
    "bonus",
}

#: Functions of a rule that the registry of the reference calls. That of Lua has more moments, with names of their own.
HOOKS = {"enter", "leave", "hold", "free"}


def public_functions(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    found = [each.name for scope in (tree, *classes) for each in scope.body if isinstance(each, ast.FunctionDef)]
    return {name for name in found if not name.startswith("_")}


def room_of(path):
    """Return the folder of Lua that has the name of the reference's file *path*, or a file or table of that name."""
    (room,) = (
        [room for room in ROOMS if room == path.stem]
        or [room for room in ROOMS if (LUA / room / f"{path.stem}.lua").exists()]
        or [room for room in ROOMS if f"\nfunction {path.stem}." in source_of(room)]
    )
    return room


def source_of(room):
    return "\n".join(path.read_text(encoding="utf-8") for path in (LUA / room).glob("*.lua"))


def test_the_functions_of_a_file_of_the_reference_are_in_its_room_of_lua(subtests):
    for path in TWINS:
        with subtests.test(str(path)):
            found = re.findall(r"\bfunction (?:\w+\.)?(\w+)\(|\b(\w+) = function\(", source_of(room_of(path)))
            functions = {name for each in found for name in each}
            assert public_functions(path) <= functions | ONLY_IN_PYTHON | HOOKS


def test_the_arrows_are_in_files_by_subject_and_nothing_else_is_there():
    found = [name for path in ARROW_FILES for name in sorted(public_functions(path) - ONLY_IN_PYTHON)]
    assert sorted(found) == sorted({*FUNCTION_NAMES} - WITHOUT_REFERENCE)


def test_an_arrow_is_in_the_table_of_contents(subtests):
    for arrow in sorted({*FUNCTION_NAMES} - WITHOUT_REFERENCE):
        with subtests.test(str(arrow)):
            assert hasattr(Reference, arrow)


def test_the_place_at_which_a_repair_goes_on_is_an_exact_number():
    """Lua's numbers are exact up to 2^53: a place that is rounded would have a repair go round for ever."""
    text = (LUA / "functions/repair.lua").read_text()
    assert text.count("{ fix_") == 13
    assert (text.count("{ fix_") + 1) * STAGE < 2**53
    assert f"local STAGE, PAGE = {STAGE}, " in text
