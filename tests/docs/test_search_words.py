"""Readers find what they need by their own words: on the site's search, in the glossary, and as Markdown."""

import json
import re

import pytest

from celery_affinity.options.affinity import Affinity
from docs.site_search import places

from ..support.pages import blocks
from ..support.processes import ROOT


@pytest.fixture(scope="module")
def index(site):
    text = (site / "searchindex.js").read_text()
    return json.loads(text.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))


def test_the_search_of_the_site_knows_what_each_word_of_others_leads_to(site, index):
    known = places((ROOT / "docs" / "reference" / "glossary.md").read_text())
    assert len(known) > 80
    for each in known:
        entries = index["indexentries"][each.word.lower()]
        anchors = {anchor for number, anchor, is_main in entries if index["docnames"][number] == each.page and is_main}
        assert each.heading in anchors, each
        assert not each.heading or f'id="{each.heading}"' in (site / f"{each.page}.html").read_text(), each


def test_the_glossary_has_no_word_twice():
    ours = re.findall(r"^\| ([a-z][^|]*?) \|", (ROOT / "docs/reference/glossary.md").read_text(), re.MULTILINE)
    assert len(ours) > 60
    assert len(ours) == len({*ours})


@pytest.mark.parametrize("page", ["docs/how-to/find-an-option.md", "docs/how-to/coming-from.md"])
def test_the_tasks_of_the_page_can_be_declared(page):
    names = {"__name__": "shop"}
    exec(blocks(page)["shop.py"], names)
    app = names["app"]
    own = [task for name, task in app.tasks.items() if name.startswith("shop.")]
    assert len(own) >= 4
    assert all(isinstance(task.affinity, Affinity) for task in own)
    app.close()


def test_each_page_is_there_as_markdown_whose_links_work_and_llms_txt_lists_it(site):
    listed = (site / "llms.txt").read_text()
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 50
    for page in pages:
        text = (site / page).read_text()
        assert "{toctree}" not in text
        for target in re.findall(r"\]\(([^)#:\s]+\.md)(?:#[^)]*)?\)", text):
            assert (site / page.parent / target).exists(), f"{page}: {target}"
        assert page.name == "index.md" or f"]({page})" in listed, page
        assert f'type="text/markdown" href="{page.name}"' in (site / page).with_suffix(".html").read_text()


def test_the_first_mention_of_a_word_leads_to_its_row_of_the_glossary_and_shows_its_meaning(site):
    text = (site / "how-to" / "deploy.html").read_text()
    found = re.findall(r'<a class="word [^>]*href="\.\./reference/glossary\.html#(word-[^"]*)" title="([^"]+)"', text)
    assert dict(found)["word-dispatcher"].startswith(
        "a thread of a worker, or a process, for changes that no event triggers"
    )
    assert len(found) == len({each for each, _ in found}) > 8
    rows = re.findall(r'<(?:td|span)[^>]* id="(word-[^"]*)"', (site / "reference" / "glossary.html").read_text())
    assert {each for each, _ in found} <= set(rows)


def test_each_page_leads_to_the_glossary(site):
    pages = [path for path in site.rglob("*.html") if "href" in path.read_text()]
    assert [path.name for path in pages if "glossary.html" not in path.read_text() and path.stem != "glossary"] == []
