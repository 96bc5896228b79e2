"""The site in a browser: nothing is cut off, pictures follow the theme, search finds the pages for users first."""

import re
import shutil

import pytest

from ..support.processes import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDTHS = [360, 768, 1024, 1150, 1440]
SCREENSHOTS = sorted(path for path in (ROOT / "docs").rglob("page-*.png") if not path.stem.endswith("-dark"))

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

#: What readers type -> the page that must come first. The chooser is among the first three.
FIRST = {
    "duplicate": "how-to/merge.html",
    "debounce": "how-to/merge.html",
    "throttle": "how-to/rate-limits.html",
    "mutex": "how-to/locks.html",
    "semaphore": "how-to/locks.html",
    "backpressure": "how-to/queue-length.html",
    "cron": "how-to/recurring-calls.html",
    "rollback": "how-to/upgrade.html",
    "tenant": "how-to/tenants.html",
    "quota": "how-to/tenants.html",
    "troubleshooting": "how-to/troubleshooting.html",
    "stuck": "how-to/troubleshooting.html",
    "priority": "how-to/urgent-tasks.html",
    "dead letter": "how-to/cancel-move-replay.html",
    "Dead Letter Queue": "how-to/cancel-move-replay.html",
    "graceful shutdown": "how-to/deploy.html",
    "retry": "how-to/cancel-move-replay.html",
    "timeout": "how-to/publish-fails.html",
    "visibility timeout": "explanation/reliability.html",
}

#: Shows each page in a frame of each width. Returns what does not fit into the page, or into a table's own scroll bar.
MEASURE = """async ([pages, widths]) => {
  document.body.innerHTML = '<iframe style="height: 900px; border: 0"></iframe>';
  const frame = document.querySelector('iframe'), found = [];
  for (const address of pages) {
    await new Promise(loaded => { frame.onload = loaded; frame.src = address; });
    const page = frame.contentDocument;
    for (const width of widths) {
      frame.style.width = `${width}px`;
      frame.getBoundingClientRect();  // lays the page out anew
      for (const each of [page.documentElement, ...page.querySelectorAll('.content, .table-wrapper')])
        if (each.scrollWidth > each.clientWidth + 1)
          found.push({address, width, part: each.className || 'page', text: each.innerText.slice(0, 60)});
    }
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        words = ["--no-sandbox", "--allow-file-access-from-files"]
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=words)
        yield found
        found.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1500, "height": 900})
    yield page
    page.close()


def test_nothing_is_cut_off_at_any_width(site, page):
    addresses = [path.as_uri() for path in sorted(site.rglob("*.html"))]
    assert len(addresses) > 60
    page.goto(addresses[0])
    found = page.evaluate(MEASURE, [addresses, WIDTHS])
    assert [each for each in found if "table-wrapper" not in each["part"] or each["width"] > 360] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots_follow_the_theme(site, browser, scheme):
    page = browser.new_page(color_scheme=scheme)
    page.goto((site / "how-to" / "web-ui.html").as_uri())
    shown = page.evaluate("[...document.images].filter(each => each.offsetWidth).map(each => each.src)")
    found = {each.rpartition("/")[2] for each in shown if "/page-" in each}
    wanted = {path.stem + {"light": ".png", "dark": "-dark.png"}[scheme] for path in SCREENSHOTS}
    assert found == wanted
    page.close()


def found_by(site, page, words):
    """Return the pages that the site's search finds, in the order of their first result."""
    page.goto(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
    page.wait_for_function("document.querySelector('#search-results > p')?.innerText.includes('found')")
    hrefs = page.evaluate(
        "[...document.querySelectorAll('#search-results li a')].map(each => each.getAttribute('href'))"
    )
    return list(dict.fromkeys(each.partition("#")[0].partition("?")[0] for each in hrefs))


def test_search_finds_the_page_of_a_word_of_others_first_and_the_chooser_soon(site, page):
    found = {words: found_by(site, page, words)[:3] for words in FIRST}
    assert {words: pages[0] for words, pages in found.items()} == FIRST
    assert {words: pages for words, pages in found.items() if "how-to/find-an-option.html" not in pages} == {}


@pytest.mark.parametrize("words", ["heartbeat", "reserve", "merge", "million jobs", "late acks", "measurements"])
def test_search_finds_pages_for_users_before_the_internals(site, page, words):
    pages = found_by(site, page, words)
    internal = [each.startswith("internals/") for each in pages]
    assert {*internal} == {True, False}
    assert internal == sorted(internal), pages


def test_the_sidebar_has_the_captions_of_the_index(site, page):
    captions = re.findall(r"^:caption: (.+)$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE)
    assert len(captions) > 5
    page.goto((site / "quickstart.html").as_uri())
    shown = page.evaluate(
        "[...document.querySelectorAll('.sidebar-tree .caption')].map(each => each.textContent.trim())"
    )
    assert shown[: len(captions)] == captions


def test_a_button_copies_the_commands_of_a_session_without_prompts_and_comments(site, page):
    page.add_init_script("navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.goto((site / "how-to" / "pause-and-drain.html").as_uri())
    block = page.locator(".highlight-console").filter(has_text="pause pdf").first
    block.hover()
    block.get_by_role("button", name="Copy").click()
    copied = page.evaluate("window.copied").splitlines()
    assert copied[0] == 'celery -A shop affinity pause pdf --reason "db migration" --for 30m'
    assert len(copied) == 5
    page.goto((site / "how-to" / "locks.html").as_uri())
    code = page.locator(".highlight-python").first
    code.hover()
    code.get_by_role("button").click()
    assert page.evaluate("window.copied").startswith("from celery import Celery")
