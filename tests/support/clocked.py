"""Fake clocks for server functions (`celery_affinity.lab.scripts_engine`), for readers, and for Python."""

from celery_affinity.lab.scripts_engine import CLOCK, CLOCKED, START_US, FakeClockScheduler, at_fake_time
from celery_affinity.scheduler.reader import Reader

__all__ = ["CLOCK", "CLOCKED", "START_US", "Clock", "ClockedReader", "FakeClockScheduler", "at_fake_time"]


class ClockedReader(Reader):
    """A reader with the fake clock of a scheduler."""

    def __init__(self, scheduler):
        super().__init__(scheduler.client, scheduler.keys)
        self.scheduler = scheduler

    def now_us(self):
        return self.scheduler.now_us


class Clock:
    """A function that returns the seconds set by a test."""

    def __init__(self):
        self.at_s = 1000.0

    def __call__(self):
        return self.at_s
