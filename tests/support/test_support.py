"""Shared helpers are in `tests.support`, and each folder of the package has a folder of tests with its name."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]

#: Folders that exist only in tests.
OF_TESTS_ALONE = {"apps", "conformance", "docs", "support", "whole"}

#: `conformance` compares it with the reference model.
COMPARED = {"lua"}


def _imported(path):
    """Return the full names of the modules and of the names that a file imports."""
    here = path.relative_to(TESTS.parent).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: -node.level]] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_no_file_imports_a_test():
    imports = {
        f"{path.relative_to(TESTS)} imports {name}"
        for path in TESTS.rglob("*.py")
        for name in _imported(path)
        if re.match(r"tests\.(.+\.)?test_", name)
    }
    assert imports == set()


def _folders(path):
    return {each.name for each in path.iterdir() if (each / "__init__.py").exists()}


def test_each_package_folder_has_a_test_folder():
    folders = _folders(TESTS.parent / "celery_affinity") - COMPARED
    assert _folders(TESTS) == folders | OF_TESTS_ALONE
