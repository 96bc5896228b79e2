"""Time that a test passes in: to scripts, which read it from a key in place of the server's clock, and to Python."""

from dataclasses import replace
from functools import cache

from celery_affinity.server.reader import Reader
from celery_affinity.server.scheduler import Scheduler
from celery_affinity.server.scripts.assembling import Script

#: Key that holds the time for scripts.
CLOCK = "the-time-passed-in"
START_US = 1_800_000_000_000_000


class ClockedScheduler(Scheduler):
    """A scheduler whose arrows run at a time that the test passes in."""

    def __init__(self, client, keys):
        super().__init__(client, keys)
        self.now_us = START_US
        self.advance(0)

    def advance(self, seconds):
        self.now_us += round(seconds * 1e6)
        self.client.hset(CLOCK, mapping={"s": self.now_us // 1_000_000, "us": self.now_us % 1_000_000})

    def _run_together(self, calls):
        return super()._run_together([(clocked(script), arguments) for script, arguments in calls])


@cache
def clocked(script: Script) -> Script:
    source = script.source.replace('redis.call("TIME")', f'redis.call("HMGET", "{CLOCK}", "s", "us")')
    assert source != script.source or "clock.now_us" not in script.source
    return replace(script, source=source)


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
