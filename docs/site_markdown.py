"""The pages as Markdown beside their HTML, and llms.txt, which lists them: for programs that read documentation.

https://llmstxt.org says what llms.txt has. The Markdown is that of the repository: links between pages lead to Markdown
again, and those that leave the docs lead to the repository (`site_links`).
"""

import re
from pathlib import Path

from docutils import nodes
from site_links import outward
from sphinx.application import Sphinx

_TOCTREE = re.compile(r"\n```\{toctree\}\n.*?```\n", re.DOTALL)
_CAPTION = re.compile(r":caption: (.+)")
_ABOUT = "Sends each Celery task to the right worker, in the right order, on Redis or Valkey: a transport for Celery."


def point(app: Sphinx, page: str, template: str, context: dict[str, str], doctree: object) -> None:  # noqa: ARG001
    """Add a link to the Markdown of *page* to its HTML."""
    if doctree is not None:
        link = f'<link rel="alternate" type="text/markdown" href="{page.rpartition("/")[2]}.md">'
        context["metatags"] = context.get("metatags", "") + link


def write(app: Sphinx, error: Exception | None) -> None:
    """Write each page beside its HTML, and the list of all pages in the order of the sidebar."""
    if error is not None or app.builder.format != "html":
        return
    for page in app.env.found_docs:
        source = [Path(app.env.doc2path(page)).read_text()]
        outward(app, page, source)
        Path(app.outdir, page).with_suffix(".md").write_text(_TOCTREE.sub("", source[0]))
    Path(app.outdir, "llms.txt").write_text(_list(app))


def _list(app: Sphinx) -> str:
    lines = [f"# {app.config.project}", "", f"> {_ABOUT}", ""]
    caption, listed = "Begin here", {"index"}
    for block in _TOCTREE.findall(Path(app.srcdir, "index.md").read_text()):
        found = _CAPTION.search(block)
        caption = found[1] if found else caption
        lines += [f"## {caption}", ""]
        names = [line for line in block.splitlines()[2:-1] if line and not line.startswith(":")]
        for page in (each for name in names for each in _with_children(app, name)):
            if page not in listed:
                listed.add(page)
                lines.append(f"- [{app.env.titles[page].astext()}]({page}.md){_first_sentence(app, page)}")
        lines.append("")
    return "\n".join(lines)


def _with_children(app: Sphinx, page: str) -> list[str]:
    return [page, *app.env.toctree_includes.get(page, [])]


def _first_sentence(app: Sphinx, page: str) -> str:
    """Return the first sentence of *page*, for those who have to choose a page."""
    paragraph = next(iter(app.env.get_doctree(page).findall(nodes.paragraph)), None)
    text = " ".join(paragraph.astext().split()) if paragraph is not None else ""
    sentence = re.match(r".+?[.:?](?= |$)", text)
    return f": {sentence[0].rstrip(':')}" if sentence else ""


def setup(app: Sphinx) -> dict[str, bool]:
    """Register `point` for the HTML of each page, and `write` for the end."""
    app.connect("html-page-context", point)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
