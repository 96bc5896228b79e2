"""The docs stay short: the number of pages and of words is bounded, without the reference, which lists everything."""

from ..support.processes import ROOT

DOCS = ROOT / "docs"
MAX_PAGES, MAX_WORDS = 50, 60_000
MAX_WORDS_OF_PAGE, MAX_WORDS_OF_INTERNAL_PAGE = 2_000, 2_500

#: Pages with another limit, and the reason.
LONGER = {
    # One table has every kind of failure with its effect on waiting and running jobs: readers compare its rows.
    "explanation/reliability.md": 3_000,
}


def counted():
    """Return the number of words, as `wc -w` counts them, of each page outside of the reference."""
    pages = {page.relative_to(DOCS).as_posix(): page.read_text() for page in DOCS.rglob("*.md")}
    return {name: len(text.split()) for name, text in pages.items() if not name.startswith("reference/")}


def limit_of(name):
    default = MAX_WORDS_OF_INTERNAL_PAGE if name.startswith("internals/") else MAX_WORDS_OF_PAGE
    return LONGER.get(name, default)


def test_the_docs_have_few_pages():
    assert len(counted()) <= MAX_PAGES, "merge the new page into another page"


def test_the_docs_have_few_words():
    assert sum(counted().values()) <= MAX_WORDS, "link a fact to its home instead of repeating it"


def test_no_page_is_too_long():
    assert {name: words for name, words in counted().items() if words > limit_of(name)} == {}


def test_each_longer_page_needs_its_limit():
    words = counted()
    assert [name for name, limit in LONGER.items() if words[name] <= limit_of("") or words[name] > limit] == []
