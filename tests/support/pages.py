"""Figures in the docs: a program writes them between two markers of a page, and nobody by hand."""

import re
from pathlib import Path

RELIABILITY = Path(__file__).parents[2] / "docs" / "explanation" / "reliability.md"


def write_block(page: Path, name: str, text: str) -> None:
    """Replace what stands between the markers *name* of *page*."""
    begin, end = f"<!-- {name}: begin, written by make {name} -->", f"<!-- {name}: end -->"
    before = page.read_text()
    if begin not in before or end not in before:
        raise LookupError(f"{page.name} has no {begin}")
    block = f"{begin}\n{text}{end}"
    page.write_text(re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: block, before, flags=re.DOTALL))
