"""The page's events: one broker read serves all viewers, and errors are events too."""

import asyncio
import json
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace

import pytest

from celery_affinity.reports.type_metrics import TypeMetrics
from celery_affinity.schema.histograms import histogram_of
from celery_affinity.web import asgi
from celery_affinity.web.broker import BrokerDownError
from celery_affinity.web.page import news as news_module
from celery_affinity.web.page.news import News


class Asked:
    """The part of a site that `News` needs. It counts the reads, and returns the values that a test sets."""

    settings, lists = SimpleNamespace(max_pending=()), None

    def __init__(self):
        self.times, self.error, self.answers = 0, None, asyncio.Event()
        self.before, self.metrics, self.asked_for_before = [], [], []
        self.answers.set()

    async def with_fleet(self, *arguments):
        await self.answers.wait()
        self.times += 1
        self.asked_for_before.append(arguments[-1])
        if self.error:
            raise self.error
        before = self.before if arguments[-1] else []
        return {"number": self.times, "now_s": float(self.times), "metrics": self.metrics, "before": before}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(news_module, "INTERVAL_S", 0.01)


def run(test):
    """Run *test*, a function of a site and its `News`, in an event loop that ends with it."""

    async def whole():
        site = Asked()
        news = News(site)
        try:
            await asyncio.wait_for(test(site, news), 20)
        finally:
            if news._task:
                news._task.cancel()

    asyncio.run(whole())


@asynccontextmanager
async def viewer_of(news):
    with news.viewing():
        async with aclosing(news.events()) as events:
            yield events


def parsed(event):
    name, data = event.strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def first(events, number):
    return [parsed(await anext(events)) for _ in range(number)]


def test_viewer_gets_each_newer_state():
    async def test(site, news):
        async with viewer_of(news) as events:
            found = await first(events, 3)
            assert [name for name, _ in found] == ["news"] * 3
            numbers = [data["number"] for _, data in found]
            assert numbers == sorted(set(numbers))

    run(test)


def test_broker_is_not_read_without_viewers():
    async def test(site, news):
        async with viewer_of(news) as events:
            await first(events, 2)
        await asyncio.wait_for(news._task, 10)
        so_far = site.times
        async with viewer_of(news) as events:
            ((_, data),) = await first(events, 1)
            assert data["number"] == so_far + 1, "the state from before the pause is old"

    run(test)


def test_waits_begin_with_the_stored_metrics():
    async def test(site, news):
        site.before = [(-300.0, [TypeMetrics("pdf")])]
        site.metrics = [TypeMetrics("pdf", queued=histogram_of({"queued 03": "7"}, "queued"))]
        async with viewer_of(news) as events:
            ((_, data),) = await first(events, 1)
            assert data["times"]["seconds"] == 301
            assert data["times"]["rows"][0]["jobs"] == 7
            await first(events, 1)
            assert site.asked_for_before == [True, False]

    run(test)


def test_broker_is_read_once_for_all_viewers():
    async def test(site, news):
        async def view():
            async with viewer_of(news) as events:
                return await first(events, 6)

        await asyncio.gather(*(view() for _ in range(50)))
        assert site.times < 60, "fifty viewers of five news each"

    run(test)


def test_slow_viewer_gets_the_newest_event_next():
    async def test(site, news):
        async with viewer_of(news) as events:
            await first(events, 2)
            so_far = site.times
            while site.times < so_far + 5:
                await asyncio.sleep(0.01)
            ((_, data),) = await first(events, 1)
            assert data["number"] >= so_far + 5

    run(test)


def test_broker_failure_and_return_are_events():
    async def test(site, news):
        site.error = BrokerDownError("the broker redis:// does not answer")
        async with viewer_of(news) as events:
            ((name, data),) = await first(events, 1)
            assert (name, data["why"]) == ("down", "the broker redis:// does not answer")
            site.error = None
            while name != "news":
                ((name, _),) = await first(events, 1)

    run(test)


def test_early_viewer_waits_without_polling(monkeypatch):
    async def test(site, news):
        site.answers.clear()
        waits = 0
        has_changed = news._has_changed

        async def counted(seen):
            nonlocal waits
            waits += 1
            return await has_changed(seen)

        monkeypatch.setattr(news, "_has_changed", counted)
        async with viewer_of(news) as events:
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.2)
            assert waits <= 1
            site.answers.set()
            assert parsed(await waiting)[0] == "news"

    run(test)


def test_number_of_simultaneous_viewers_is_limited(app):
    """300 requests arrive together. None of them has begun to read when the others are checked."""
    site, done = asgi(app), asyncio.Event()
    statuses = []

    async def view():
        async def receive():
            await done.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await asyncio.sleep(0)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/events",
            "raw_path": b"/api/events",
            "query_string": b"",
        }
        headers = [(b"host", b"localhost")]
        await site({**scope, "headers": headers, "client": ("127.0.0.1", 1), "root_path": ""}, receive, send)

    async def together(number):
        done.clear()
        statuses.clear()
        tasks = [asyncio.create_task(view()) for _ in range(number)]
        async with asyncio.timeout(20):
            while len(statuses) < number:
                await asyncio.sleep(0)
        done.set()
        await asyncio.gather(*tasks)
        return Counter(statuses)

    async def test():
        most = news_module.MAX_VIEWERS
        assert await together(most + 100) == {200: most, 503: 100}
        assert await together(most) == {200: most}, "the places of the first ones are free"

    asyncio.run(test())
