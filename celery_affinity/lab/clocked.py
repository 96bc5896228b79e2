"""The library of the arrows at a time that is passed in: a key has it, in place of the server's clock."""

import redis

from ..clock import SECOND_US
from ..lua.library import Argument
from ..lua.ways import Library, library
from ..rules.redis_keys import Keys
from ..server.scheduler import Scheduler

#: Key that holds the time for arrows.
CLOCK = "the-time-passed-in"

#: Time, µs, at which a clocked scheduler begins.
START_US = 1_800_000_000_000_000


def clocked(text: str) -> str:
    """Return the text of a library whose arrows go by the time that is passed in."""
    found = text.replace('redis.call("TIME")', f'redis.call("HMGET", "{CLOCK}", "s", "us")')
    assert found != text
    return found


CLOCKED = library().changed(clocked)

#: What a connection is sent to pass a time in.
Command = tuple[Argument, ...]


def setting(now_us: int) -> Command:
    """Return the command that sets the clock."""
    seconds, rest_us = divmod(now_us, SECOND_US)
    return "HSET", CLOCK, "s", seconds, "us", rest_us


class ClockedScheduler(Scheduler):
    """A scheduler whose arrows run at a time that its user passes in."""

    library: Library = CLOCKED

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        super().__init__(client, keys)
        self.now_us = START_US
        self.advance(0)

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * SECOND_US)
        self.client.execute_command(*setting(self.now_us))
