"""The search of the site finds words of other systems: the targets in the glossary's second table come first."""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

GLOSSARY = "reference/glossary"
HEADING = "\n## Words of others\n"

_ROW = re.compile(r"^\| ([^|]+) \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#\s]+)\.md(?:#([^)\s]+))?\)")


class Place(NamedTuple):
    """Target of a word of other systems. *heading*: as links of the docs name it; "" for the page as a whole."""

    word: str
    page: str
    heading: str


def places(text: str) -> list[Place]:
    """Return the target of each word in the second table of the glossary's Markdown."""
    folder = PurePosixPath(GLOSSARY).parent
    return [
        Place(word, normpath(folder / page), heading)
        for words, here in _ROW.findall(text.partition(HEADING)[2])
        for word in words.split(", ")
        for page, heading in _LINK.findall(here)
    ]


def enter(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Give *page* an entry of the index for each word that leads there."""
    for each in places(Path(app.srcdir, f"{GLOSSARY}.md").read_text()):
        if each.page == page:
            target = next((node for node in tree.findall(nodes.section) if node.get("slug") == each.heading), None)
            anchor = "" if target is None else target["ids"][0]
            tree.append(addnodes.index(entries=[("single", each.word.lower(), anchor, "main", None)]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register `enter` for each page."""
    app.connect("doctree-resolved", enter)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
