"""A file of the reference has the names of its Lua counterpart, so that each function is found by name."""

import ast
import re
from importlib.resources import files
from pathlib import Path

from celery_affinity import lua
from celery_affinity.lua.library import FUNCTION_NAMES
from tests.conformance.reference.reference import Reference
from tests.conformance.stories import STAGE

REFERENCE, LUA = Path(__file__).parent / "reference", Path(str(files(lua)))
#: Functions without a counterpart in the reference, whose state is never damaged.
WITHOUT_REFERENCE = {"repair", "record"}

ROOMS = sorted(
    path.name for path in LUA.iterdir() if path.is_dir() and path.name not in {"functions", *WITHOUT_REFERENCE}
)
ARROW_FILES = sorted(path for path in (REFERENCE / "functions").glob("*.py") if path.stem != "__init__")
TWINS = sorted(
    path
    for path in REFERENCE.glob("*.py")
    if path.stem not in {"__init__", "reference", "model", "placement", "replies", "tags"}
)

#: Python functions without a Lua counterpart. Scripts detect a choice while reading, read settings one by one, have one
#: function for two methods sometimes, and keep in lanes what the reference derives from rules.
ONLY_IN_PYTHON = {
    "batch_id",
    "remove_claim",
    "has_choice",
    "slots_that_fit",
    "get",
    "weights",
    "revoke_stamped",
    "leave_to_others",
}
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

#: Functions of a rule that the reference's registry calls. The Lua registry has more moments with their own names.
HOOKS = {"enter", "leave", "hold", "free"}


def public_functions(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    found = [each.name for scope in (tree, *classes) for each in scope.body if isinstance(each, ast.FunctionDef)]
    return {name for name in found if not name.startswith("_")}


def room_of(path):
    """Return the Lua folder with the name of the reference's file *path*, or with a file or table of that name."""
    (room,) = (
        [room for room in ROOMS if room == path.stem]
        or [room for room in ROOMS if (LUA / room / f"{path.stem}.lua").exists()]
        or [room for room in ROOMS if f"\nfunction {path.stem}." in source_of(room)]
    )
    return room


def source_of(room):
    return "\n".join(path.read_text(encoding="utf-8") for path in (LUA / room).glob("*.lua"))


def test_reference_functions_exist_in_the_matching_lua_folder(subtests):
    for path in TWINS:
        with subtests.test(str(path)):
            found = re.findall(r"\bfunction (?:\w+\.)?(\w+)\(|\b(\w+) = function\(", source_of(room_of(path)))
            functions = {name for each in found for name in each}
            assert public_functions(path) <= functions | ONLY_IN_PYTHON | HOOKS


def test_function_files_contain_exactly_the_server_functions():
    found = [name for path in ARROW_FILES for name in sorted(public_functions(path) - ONLY_IN_PYTHON)]
    assert sorted(found) == sorted({*FUNCTION_NAMES} - WITHOUT_REFERENCE)


def test_each_function_is_in_the_table_of_contents(subtests):
    for arrow in sorted({*FUNCTION_NAMES} - WITHOUT_REFERENCE):
        with subtests.test(str(arrow)):
            assert hasattr(Reference, arrow)


def test_repair_positions_are_exact_numbers():
    """Lua's numbers are exact up to 2^53: a rounded position would make a repair endless."""
    text = (LUA / "functions/repair.lua").read_text()
    assert text.count("{ fix_") == 14
    assert (text.count("{ fix_") + 1) * STAGE < 2**53
    assert f"local STAGE, PAGE = {STAGE}, " in text
