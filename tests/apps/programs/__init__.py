"""Programs for the plugin tests: each module has a Celery app, its tasks, and a function ``scenario``."""

import json
import os
from pathlib import Path

import redis
from celery import Celery

from tests.support.processes import wait_until

URL = os.environ["BROKER_URL"]
server = redis.Redis.from_url(URL, decode_responses=True)


def make_app(name, cls=Celery, **settings):
    """Return an app with the transport named in the environment."""
    app = cls(name, broker=URL, backend=URL)
    app.conf.broker_transport = os.environ["TRANSPORT"]
    app.conf.update(result_extended=True, broker_connection_retry_on_startup=True, **settings)
    return app


def note_run(task, *values):
    """Record a run of *task* with its queue and worker."""
    worker = task.request.hostname.partition("@")[0]
    server.rpush("runs", json.dumps([task.name, *values, task.request.delivery_info["routing_key"], worker]))


def runs():
    """Return the recorded runs: [name of the task, values ..., queue, worker]."""
    return [json.loads(each) for each in server.lrange("runs", 0, -1)]


def hold(name):
    """Wait until the scenario releases *name*."""
    assert server.blpop(f"go:{name}", timeout=60), f"the scenario does not let {name} go"


def release(name):
    server.rpush(f"go:{name}", "go")


def wait_for_no_key(pattern):
    """Wait until the server has no key that matches *pattern*: a plugin deletes its lock after the result is stored."""
    wait_until(lambda: not list(server.scan_iter(pattern)), 30, f"no key matches {pattern}")


def write_event(event):
    """Append *event* to the file that the test reads: in one write, since several processes append to it."""
    with (Path(os.environ["FOLDER"]) / "events").open("ab", buffering=0) as events:
        events.write(json.dumps(event, default=str).encode() + b"\n")
