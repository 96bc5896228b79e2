"""The page's events: one broker read serves all viewers, and errors are events too."""

import asyncio
import json
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace

import pytest

from celery_affinity.web import asgi
from celery_affinity.web.broker import BrokerDownError
from celery_affinity.web.page import news as news_module
from celery_affinity.web.page.news import News

TYPES = {"pdf": [1, 2]}


class Asked:
    """The part of a site that `News` needs. It counts the reads, and returns the values that a test sets."""

    settings, lists = SimpleNamespace(max_pending=()), None

    def __init__(self):
        self.times, self.error, self.answers = 0, None, asyncio.Event()
        self.answers.set()

    async def with_fleet(self, *_):
        await self.answers.wait()
        self.times += 1
        if self.error:
            raise self.error
        return {"number": self.times, "sample": {"at": float(self.times), "types": TYPES}}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(news_module, "LOOKED_AT_S", 0.01)
    monkeypatch.setattr(news_module, "ALONE_S", 0.02)


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


def test_viewer_gets_the_history_before_new_events():
    async def test(site, news):
        async with viewer_of(news) as events:
            (history, _), *rest = await first(events, 4)
            assert history == "history"
            assert [name for name, _ in rest] == ["news"] * 3
            numbers = [data["number"] for _, data in rest]
            assert numbers == sorted(set(numbers))
        async with viewer_of(news) as events:
            ((_, history),) = await first(events, 1)
            assert [each["at"] for each in history] == [float(nth) for nth in range(1, len(history) + 1)]
            assert len(history) >= 3

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
            _, (name, data) = await first(events, 2)
            assert (name, data["why"]) == ("down", "the broker redis:// does not answer")
            site.error = None
            while name != "news":
                ((name, _),) = await first(events, 1)

    run(test)


def test_only_the_first_sample_after_outages_has_gaps():
    async def test(site, news):
        async with viewer_of(news) as events:
            await first(events, 3)
            site.error = BrokerDownError("the broker redis:// does not answer")
            while (await first(events, 1))[0][0] != "down":
                pass
            site.error = None
            while (await first(events, 1))[0][0] != "news":
                pass
            await first(events, 2)
        samples = list(news._history)
        gaps = [nth for nth, each in enumerate(samples) if each.get("gap")]
        assert len(gaps) == 1
        assert 0 < gaps[0] < len(samples) - 1

    run(test)


def test_sample_after_a_long_pause_has_a_gap():
    news = News(Asked())
    for at in (0.0, 2.0, 2.0 + news_module._GAP_S, 4.1 + 2 * news_module._GAP_S):
        news._remember({"at": at, "types": TYPES})
    assert [each.get("gap", False) for each in news._history] == [False, False, False, True]


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
            await first(events, 1)
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
