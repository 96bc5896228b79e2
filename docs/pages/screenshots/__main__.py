"""Start a fleet, have it work for a minute and a half, and take two pictures of each view.

docs/how-to/page-*.png is light, and page-*-dark.png is its dark twin, which the site shows to readers in the dark.
"""

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from celery_affinity.embedded import EmbeddedServer

PAGES = Path(__file__).parents[2] / "how-to"
APP = "docs.pages.screenshots.shop"
WORKERS = {
    "pdf": ("pdf", 5),
    "office": ("excel,pdf,route", 3),
    "versatile": ("excel,pdf,route,video", 2),
    "video": ("video", 1),
}

#: The other views of the page, by address, and a text that each of them shows.
VIEWS = {
    "workers": "versatile@shop",
    "tasks": "shop.render",
    "next": "shop.encode",
    "rules": "customer:",
    "dead": "Reject: page",
    "jobs": "shop.",
    "lab": "As recorded",
}

#: Number of long tasks: some still wait for their keys when the last picture is taken.
VIDEOS = 60

#: Time, s, for which jobs come before the pictures are taken, and the pause between two of them.
LOAD_S, PAUSE_S = 90.0, 0.22


def main() -> None:
    with EmbeddedServer() as server, ExitStack() as ended:
        os.environ["BROKER_URL"] = server.url
        for name, (types, slots) in WORKERS.items():
            ended.enter_context(_celery("worker", "-Q", types, "-c", str(slots), "-P", "threads", "-n", f"{name}@shop"))
        traces = Path(ended.enter_context(tempfile.TemporaryDirectory()))
        url = _address(ended.enter_context(_celery("affinity", "web", "--port", "0", "--traces", str(traces))))
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("chromium-browser")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 820}, color_scheme="light")
            waits = _load(ended, traces / "monday.jsonl")
            _take(page, url, "Types", "now")
            _take(page, f"{url}/#/job/{waits}", "Why it waits", "job")
            for view, text in VIEWS.items():
                _take(page, f"{url}/#/{view}", text, view)
            wall = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="dark")
            _take(wall, f"{url}/wall", "busy slots", "wall")
            phone = browser.new_page(viewport={"width": 390, "height": 820}, color_scheme="light")
            _take(phone, url, "Types", "phone")
            browser.close()


def _take(page: Page, address: str, text: str, name: str) -> None:
    """Take a picture of the view at *address*, which shows *text* when it is there."""
    page.goto(address)
    page.get_by_text(text).first.wait_for()
    _shoot(page, name)


def _shoot(page: Page, name: str) -> None:
    """Take a light and a dark picture of what *page* shows."""
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(2500)  # until the next news: the page asks every 2 s
    page.screenshot(path=PAGES / f"page-{name}-dark.png")
    page.emulate_media(color_scheme="light")
    page.wait_for_timeout(2500)
    page.screenshot(path=PAGES / f"page-{name}.png")


def _load(ended: ExitStack, trace: Path) -> str:
    """Publish for a while, with more of everything in the middle, and then until *ended*. Record it into *trace*.

    Return the id of a task that waits for its key.
    """
    from . import shop  # reads the server's address from the environment

    while len(shop.app.control.ping(timeout=1)) < len(WORKERS):
        pass
    record = ("affinity", "lab", "record", "--for", f"{LOAD_S * 0.9:.0f}s", "--output", str(trace))
    recording = ended.enter_context(_celery(*record))
    chance = random.Random(7)  # noqa: S311 - a picture, no secret
    videos = [shop.encode.delay(f"customer {number % 3}", 8).id for number in range(VIDEOS)]
    for number in range(4):
        shop.draw.delay()
        shop.scan.delay(f"page {number}")
    began, over = time.monotonic(), threading.Event()

    def publish() -> None:
        while not over.wait(PAUSE_S):
            busy = 1 + (30 < time.monotonic() - began < 60)
            for _ in range(busy):
                shop.render.apply_async((chance.uniform(0.4, 1.6),), on_demand=chance.random() < 0.1)
            if chance.random() < 0.4:
                shop.tabulate.delay(chance.uniform(0.38, 1.2))
            if chance.random() < 0.3:
                shop.plan.delay(chance.uniform(0.4, 1.4))

    publisher = threading.Thread(target=publish)
    publisher.start()
    ended.callback(publisher.join)
    ended.callback(over.set)
    time.sleep(LOAD_S)
    recording.wait(60)
    return videos[-1]


@contextmanager
def _celery(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-u", "-m", "celery", "-A", APP, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # noqa: S603 - ours
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def _address(web: subprocess.Popen[str]) -> str:
    assert web.stdout is not None
    for line in web.stdout:
        if found := re.search(r"web ready on (\S+)", line):
            return found[1]
    raise RuntimeError("the page is not served")


if __name__ == "__main__":
    main()
