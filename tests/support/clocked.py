"""Time that a test passes in: to arrows (`celery_affinity.lab.scripts_engine`), to readers, and to Python."""

from celery_affinity.lab.scripts_engine import CLOCK, CLOCKED, START_US, FakeClockScheduler, at_fake_time
from celery_affinity.scheduler.reader import Reader

__all__ = ["CLOCK", "CLOCKED", "START_US", "Clock", "ClockedReader", "FakeClockScheduler", "at_fake_time"]


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
