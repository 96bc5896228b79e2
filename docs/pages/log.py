"""The page of the log lines, from the calls that write them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import celery_affinity

from .markdown import MADE, table

BEFORE = """# Log lines

All lines that celery_affinity logs at level INFO and above. `%s`, `%d` and `%r` stand for names, numbers and values. *Part*: the package of
`celery_affinity` that logs the line. [Log lines of a worker](../how-to/worker-problems.md#log-lines-of-a-worker) explains the lines that matter most.

"""

_LEVELS = ("critical", "error", "exception", "warning", "info")
_PACKAGE = Path(celery_affinity.__file__).parent


def page() -> str:
    found = sorted(set(_lines()), key=lambda line: (_LEVELS.index(line[0]), *line[1:]))
    rows = ((("error" if level == "exception" else level).upper(), f"`{text}`", room) for level, text, room in found)
    return MADE + BEFORE + table(("level", "line", "part"), rows)


def _lines() -> Iterator[tuple[str, str, str]]:
    """Yield level, text and room of each call of a logger whose text stands in the call."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            level, text = _level(node), node.args[0] if isinstance(node, ast.Call) and node.args else None
            if level and isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield level, text.value, path.relative_to(_PACKAGE).parts[0].removesuffix(".py")


def _level(node: ast.AST) -> str | None:
    """Return the level of the line that a call writes; None for other nodes. The guard's process has no logger."""
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "logger":
        return called.attr if called.attr in _LEVELS else None
    return "warning" if isinstance(called, ast.Name) and called.id == "_log_line" else None
