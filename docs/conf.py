"""How Sphinx makes the site of these pages: ``make docs``."""

import inspect
import sys
from dataclasses import is_dataclass
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

project = "celery_affinity"
author = "celery_affinity contributors"
copyright = author  # noqa: A001 - Sphinx's name

extensions = ["myst_parser", "sphinx.ext.autodoc"]
extensions += ["site_glossary", "site_links", "site_markdown", "site_pictures", "site_search"]
exclude_patterns = ["_build"]

# Each heading has an anchor by GitHub's rules, so links work on the site and on GitHub.
myst_heading_anchors = 4

default_role = "code"
nitpicky = True
# Classes of other packages, whose sites are other hosts; of our own rooms; and names for types.
nitpick_ignore_regex = [
    ("py:.*", r"(collections\.abc|contextlib|celery|celery_affinity|kombu|datetime)\..*|Celery|Reach")
]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "celery_affinity"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_search_scorer = str(Path(__file__).with_name("search_order.js"))
html_show_sphinx = False
html_copy_source = False


def setup(app: Sphinx) -> None:
    """Show the fields of dataclasses whose `__new__` takes anything."""
    app.connect("autodoc-process-signature", _of_fields)


def _of_fields(app, what, name, thing, options, signature, returns):  # noqa: ARG001 - Sphinx passes them
    if is_dataclass(thing):
        shown = inspect.signature(thing.__init__)
        return str(shown.replace(parameters=list(shown.parameters.values())[1:], return_annotation=shown.empty)), None
    return None
