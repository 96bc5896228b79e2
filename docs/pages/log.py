"""The page of the log lines, from the calls that write them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import celery_affinity

from .markdown import MADE, table

BEFORE = """# Log lines

All lines that celery_affinity logs at level INFO and above. `%s`, `%d` and `%r` stand for names, numbers and values. *Part*: the package of
`celery_affinity` that logs the line. [What a worker's log says](../how-to/log.md) explains the lines that matter most.

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
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LEVELS:
                logger, text = node.func.value, node.args[0] if node.args else None
                is_ours = isinstance(logger, ast.Name) and logger.id == "logger"
                if is_ours and isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield node.func.attr, text.value, path.relative_to(_PACKAGE).parts[0]
