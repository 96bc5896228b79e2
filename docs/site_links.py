"""Links of the docs to files outside of them, which the site has not: they lead to the repository."""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

REPOSITORY = "https://github.com/celery-affinity/celery_affinity"
ROOT = Path(__file__).parents[1]

_LINK = re.compile(r"\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
_log = logging.getLogger(__name__)


def outward(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace each relative link of *page* that leaves the docs; warn of links to missing files."""

    def replace(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(Path(app.srcdir, page).parent / link[1]))
        if target.is_relative_to(app.srcdir):
            return link[0]
        if not target.exists():
            _log.warning("%s: no such file: %s", page, link[1])
        kind = "tree" if target.is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{target.relative_to(ROOT)}{link[2] or ''})"

    source[0] = _LINK.sub(replace, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register `outward` for each page."""
    app.connect("source-read", outward)
    return {"parallel_read_safe": True}
