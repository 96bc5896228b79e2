"""Pages of the docs: the code on them, and the numbers that a program writes into them."""

import re
import shlex
from pathlib import Path

from .processes import ROOT

#: Tables that benchmarks and long tests write; `docs/internals` describes the methods.
RESULTS = ROOT / "benchmarks" / "results"
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path):
    """Return the named code blocks of a page, by name."""
    return {name: body for _, name, body in _BLOCK.findall((ROOT / path).read_text()) if name}


def commands(block):
    """Return the commands of a console block, as lists of words."""
    return [shlex.split(line.removeprefix("$ ")) for line in block.splitlines() if line.startswith("$ ")]


def write_block(page: Path, name: str, text: str) -> None:
    """Replace the text between the markers *name* of *page*: numbers, which nobody writes by hand."""
    begin, end = f"<!-- {name}: begin, written by make {name} -->", f"<!-- {name}: end -->"
    before = page.read_text()
    if begin not in before or end not in before:
        raise LookupError(f"{page.name} has no {begin}")
    block = f"{begin}\n{text}{end}"
    page.write_text(re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: block, before, flags=re.DOTALL))


def rows(text):
    """Return the cells of the first table in *text*, without its head."""
    found = []
    for line in text.partition("|---|")[2].splitlines()[1:]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def missing_lines(block, printed):
    """Return the lines of *block* that *printed* has not in this order.

    A printed line may have more words, as in a table with more columns. Moments do not count: their hour is that of a
    time zone.
    """
    left, missing = iter(printed.splitlines()), []
    for line in filter(str.strip, block.splitlines()):
        words = _words(line)
        if not any(_has(_words(each), words) for each in left):
            missing.append(line)
    return missing


def _words(line):
    return _MOMENT.sub("", line).split()


def _has(found, words):
    left = iter(found)
    return all(word in left for word in words)
