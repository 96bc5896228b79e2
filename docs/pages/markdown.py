"""Markdown from data."""

import inspect
import re
from collections.abc import Iterable, Sequence

MADE = "<!-- Made by `make docs` from the code: change it there. -->\n\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a bar in a cell is written as one."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def prose(docstring: str | None) -> str:
    """Return a docstring as Markdown: code has one backtick on either side, paragraphs are lines."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    joined = (re.sub(r"\s*\n\s*", " ", each) for each in paragraphs)
    return re.sub(r"``(.+?)``", r"`\1`", "\n\n".join(joined))
