"""Pages of the docs: the code on them, and the figures that a program writes into them."""

import re
import shlex
from pathlib import Path

from .processes import ROOT

RELIABILITY = ROOT / "docs" / "explanation" / "reliability.md"
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path):
    """Return the named code blocks of a page, by name."""
    return {name: body for _, name, body in _BLOCK.findall((ROOT / path).read_text()) if name}


def commands(block):
    """Return the commands of a console block, as lists of words."""
    return [shlex.split(line.removeprefix("$ ")) for line in block.splitlines() if line.startswith("$ ")]


def write_block(page: Path, name: str, text: str) -> None:
    """Replace the text between the markers *name* of *page*: figures, which nobody writes by hand."""
    begin, end = f"<!-- {name}: begin, written by make {name} -->", f"<!-- {name}: end -->"
    before = page.read_text()
    if begin not in before or end not in before:
        raise LookupError(f"{page.name} has no {begin}")
    block = f"{begin}\n{text}{end}"
    page.write_text(re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: block, before, flags=re.DOTALL))
