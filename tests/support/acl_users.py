"""The users of the how-to on ACLs, created on the server of a test."""

import re
from contextlib import suppress

import pytest
import redis

from .pages import blocks

PAGE = blocks("docs/how-to/acl.md")
USERS = ("producer", "worker", "observer")


@pytest.fixture
def lines(redis_client):
    """Return a function that has the server read a block of the page."""

    def read(name):
        for line in re.split(r"\n(?=ACL )", PAGE[name].strip()):
            redis_client.execute_command(*line.split())

    return read


@pytest.fixture
def as_user(server, redis_client, lines):
    """Create the page's users; return a function from a user's name to its URL."""
    redis_client.acl_log_reset()  # of what other tests tried on this server
    for name in USERS:
        lines(name)
    with suppress(redis.ResponseError):  # Redis 7.0
        lines("since-7.2")
    yield lambda name: re.sub("redis://", f"redis://{name}:PASSWORD@", server.url)
    for name in USERS:
        redis_client.acl_deluser(name)
