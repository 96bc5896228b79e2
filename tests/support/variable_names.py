"""Refuse variable names that do not describe their values: `python -m tests.support.variable_names PATH...`."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

#: Names of variables and parameters that are refused outside comprehensions.
REFUSED = {"each", "found", "its", "said", "asked", "known"}

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def refused_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each refused variable or parameter in *source*."""
    tree = ast.parse(source)
    comprehensions = [node for node in ast.walk(tree) if isinstance(node, _COMPREHENSIONS)]
    skipped = {id(node) for comprehension in comprehensions for node in ast.walk(comprehension)}
    for class_ in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):  # a field has a name in JSON
        skipped |= {id(field.target) for field in class_.body if isinstance(field, ast.AnnAssign)}
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else None
        if name in REFUSED and id(node) not in skipped:
            yield node.lineno, name


def main() -> int:
    """Print the refused names in the Python files below the paths of the command line. Return 1 if there are any."""
    files = [file for path in sys.argv[1:] for file in sorted(Path(path).rglob("*.py"))]
    lines = [f"{file}:{line}: {name}" for file in files for line, name in refused_names(file.read_text())]
    print(*lines, sep="\n", end="\n" if lines else "")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
