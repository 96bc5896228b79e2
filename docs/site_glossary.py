"""On each page, the first mention of a word of this project leads to its row of the glossary, and shows its meaning."""

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

PAGE = "reference/glossary"

#: Words of the glossary that pages also use in their common meaning, or on every line.
_EVERYDAY = {
    *("affinity", "batch", "blocked", "bound", "call", "hint", "job", "key", "lab", "lane", "merge", "mode", "pause"),
    *("pending", "rate", "release", "run", "score", "tick", "type", "worker"),
}

_ROW = re.compile(r"^\| ([^|`]+) \| ([^|]+) \|", re.MULTILINE)
_MARKS = re.compile(r"\[([^\]]*)\]\([^)]*\)|`([^`]*)`")
_NOT_IN = (nodes.reference, nodes.literal, nodes.title, nodes.literal_block, nodes.raw)


def words_of(text: str) -> dict[str, str]:
    """Return the words of the first table of the glossary's Markdown, with their meanings as plain text."""
    rows = _ROW.findall(text.partition("\n## Words of others")[0])
    meanings = {word: _MARKS.sub(lambda mark: mark[1] or mark[2], meaning) for word, meaning in rows[1:]}
    return {word: meaning for words, meaning in meanings.items() for word in words.split(", ")}


def anchor(word: str) -> str:
    return "word-" + re.sub(r"\W+", "-", word)


def link(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Link the words of *page*; in the glossary itself, give each row its anchor."""
    meanings = words_of(Path(app.srcdir, f"{PAGE}.md").read_text())
    if page == PAGE:
        for row in tree.findall(nodes.row):
            row[0]["ids"] += [anchor(word) for word in row[0].astext().split(", ") if word in meanings]
        return
    if not page.startswith(("internals/", "reference/python")):
        left = {word: meaning for word, meaning in meanings.items() if word not in _EVERYDAY}
        uri = app.builder.get_relative_uri(page, PAGE)
        for text in [each for each in tree.findall(nodes.Text) if not _is_in(each, _NOT_IN)]:
            _link(text, left, uri)


def _is_in(node: nodes.Node, kinds: tuple[type[nodes.Node], ...]) -> bool:
    while node.parent is not None:
        if isinstance(node, kinds):
            return True
        node = node.parent
    return False


def _link(text: nodes.Text, left: dict[str, str], uri: str) -> None:
    """Link the words of *left* in *text*, and remove them from *left*."""
    parts: list[nodes.Node] = []
    rest = str(text)
    while left:
        found = re.search(rf"\b({'|'.join(map(re.escape, left))})(s|es)?\b", rest)
        if found is None:
            break
        word = found[1]
        shown = nodes.Text(found[0])
        target = f"{uri}#{anchor(word)}"
        parts += [nodes.Text(rest[: found.start()])]
        parts += [
            nodes.reference("", "", shown, internal=True, refuri=target, reftitle=left.pop(word), classes=["word"])
        ]
        rest = rest[found.end() :]
    if parts:
        text.parent.replace(text, [*parts, nodes.Text(rest)])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register `link` for each page."""
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
