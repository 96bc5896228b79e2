"""A room of the reference has the names of its twin in Lua: what a function does there is found by its name here."""

import ast
import re
from importlib.resources import files
from pathlib import Path

import pytest

from celery_affinity import lua
from celery_affinity.lua.library import ARROWS
from tests.conformance.reference.reference import Reference

REFERENCE, LUA = Path(__file__).parent / "reference", Path(str(files(lua)))
TWINS = sorted(path.relative_to(REFERENCE) for path in REFERENCE.glob("*/*.py") if path.stem != "__init__")

#: Arrows without a twin in the reference, whose state is never spoiled.
WITHOUT_REFERENCE = {"repair"}

#: Functions without a twin. Scripts find while reading whether there is a choice, read settings one by one, have one
#: arrow for two methods now and then, and find in lanes what the reference finds by rules.
ONLY_IN_PYTHON = {"has_choice", "slots_that_fit", "get", "weights", "revoke_stamped", "leave_to_others"}
ONLY_IN_PYTHON |= {
    "standing",
    "standing_ids",
    "standing_of",
    "waiting",
    "holders",
    "limit_of",
    "end_pause",
    "gain",
    "limits_in",
    "in_force",
    "keep_s",
}


def public_functions(path):
    tree = ast.parse((REFERENCE / path).read_text(encoding="utf-8"))
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    found = [each.name for scope in (tree, *classes) for each in scope.body if isinstance(each, ast.FunctionDef)]
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize("path", TWINS, ids=str)
def test_the_functions_of_a_file_of_the_reference_are_in_the_same_room_of_lua(path):
    if path.parent.name == "arrows":
        sources = [(LUA / path.with_suffix(".lua")).read_text(encoding="utf-8")]
    else:
        sources = [each.read_text(encoding="utf-8") for each in (LUA / path.parent).glob("*.lua")]
    found = re.findall(r"\bfunction (?:\w+\.)?(\w+)\(|\b(\w+) = function\(", "\n".join(sources))
    functions = {name for each in found for name in each}
    assert public_functions(path) <= functions | ONLY_IN_PYTHON


@pytest.mark.parametrize("arrow", sorted({*ARROWS} - WITHOUT_REFERENCE))
def test_an_arrow_is_in_the_table_of_contents_and_has_a_file(arrow):
    assert hasattr(Reference, arrow)
    assert Path("arrows", f"{arrow}.py") in TWINS
