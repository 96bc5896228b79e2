"""Time that a test passes in: to arrows, which read it from a key in place of the server's clock, and to Python."""

from celery_affinity.lua.ways import library
from celery_affinity.server.reader import Reader
from celery_affinity.server.scheduler import Scheduler

#: Key that holds the time for arrows.
CLOCK = "the-time-passed-in"
START_US = 1_800_000_000_000_000


def clocked(text):
    """Return the text of a library whose arrows go by the time that a test passes in."""
    found = text.replace('redis.call("TIME")', f'redis.call("HMGET", "{CLOCK}", "s", "us")')
    assert found != text
    return found


CLOCKED = library().changed(clocked)


class ClockedScheduler(Scheduler):
    """A scheduler whose arrows run at a time that the test passes in."""

    library = CLOCKED

    def __init__(self, client, keys):
        super().__init__(client, keys)
        self.now_us = START_US
        self.advance(0)

    def advance(self, seconds):
        self.now_us += round(seconds * 1e6)
        self.client.hset(CLOCK, mapping={"s": self.now_us // 1_000_000, "us": self.now_us % 1_000_000})


class ClockedReader(Reader):
    """A reader at the time of a clocked scheduler."""

    def __init__(self, scheduler):
        super().__init__(scheduler.client, scheduler.keys)
        self.scheduler = scheduler

    def now_us(self):
        return self.scheduler.now_us


class Clock:
    """A function that returns the seconds that a test has set."""

    def __init__(self):
        self.at_s = 1000.0

    def __call__(self):
        return self.at_s
