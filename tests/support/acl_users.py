"""The users of the how-to on ACLs, created on a test's server, and programs that run with their rights."""

import os
import re
import subprocess
import sys
from contextlib import suppress

import pytest
import redis

from celery_affinity.lab.scripts_engine import CLOCK
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from .apps import APP
from .pages import blocks
from .processes import ROOT

PAGE = blocks("docs/how-to/security.md")
PAGE_TEXT = (ROOT / "docs/how-to/security.md").read_text()
USERS = ("producer", "worker", "observer")


@pytest.fixture
def lines(redis_client):
    """Return a function that sends the commands in a block of the page to the server."""

    def read(name):
        for line in re.split(r"\n(?=ACL )", PAGE[name].strip()):
            redis_client.execute_command(*line.split())

    return read


@pytest.fixture
def as_user(server, redis_client, lines):
    """Create the page's users; return a function from a user's name to its URL."""
    redis_client.acl_log_reset()  # other tests on this server may have logged refusals
    redis_client.function_flush()  # a dispatcher would call other tests' libraries, whose clock is a key
    for name in USERS:
        lines(name)
    with suppress(redis.ResponseError):  # Redis 7.0
        lines("since-7.2")
    yield lambda name: re.sub("redis://", f"redis://{name}:PASSWORD@", server.url)
    for name in USERS:
        redis_client.acl_deluser(name)


@pytest.fixture
def scheduler_of(as_user):
    """Return a function from a user's name to a scheduler with its rights."""
    clients = []

    def scheduler(name):
        clients.append(redis.Redis.from_url(as_user(name)))
        return Scheduler(clients[-1], Keys())

    yield scheduler
    for client in clients:
        client.close()


def run_as(url, *words, **env):
    """Run Python in a separate process, whose broker is *url*."""
    env = {**os.environ, "BROKER_URL": url, "LEDGER": os.devnull, **env}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=60, check=False)


def publish(url):
    call = f"app.send_task('{APP}.pdf', ('job',), queue='pdf', ignore_result=True)"
    return run_as(url, "-c", f"from {APP} import app; {call}")


def version_of(client):
    return tuple(map(int, client.info("server")["redis_version"].split(".")))


def refused(client):
    """Return the refusals, without those of a library of other tests: its fake clock is a key that only tests have."""
    entries = [(entry["username"], entry["object"], entry["reason"]) for entry in client.acl_log()]
    return [entry for entry in entries if entry[1] != CLOCK]
