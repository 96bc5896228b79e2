"""Pictures of the site: a picture that has a dark twin, `page-now.png` and `page-now-dark.png`, follows the theme."""

import copy
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

BEFORE_SPHINX_COPIES_PICTURES = 400  # it does so at the default priority, 500


def add_dark_twins(app: Sphinx, page: nodes.document) -> None:  # noqa: ARG001 - Sphinx passes it
    """Add the dark twin after each picture; the theme hides one of them."""
    folder = Path(page["source"]).parent
    for picture in list(page.findall(nodes.image)):
        light = Path(picture["uri"])
        dark = light.with_stem(f"{light.stem}-dark")
        if (folder / dark).exists():
            twin = copy.deepcopy(picture)
            twin["uri"] = str(dark)
            picture["classes"].append("only-light")
            twin["classes"].append("only-dark")
            picture.parent.insert(picture.parent.index(picture) + 1, twin)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register `add_dark_twins` for each page."""
    app.connect("doctree-read", add_dark_twins, BEFORE_SPHINX_COPIES_PICTURES)
    return {"parallel_read_safe": True}
