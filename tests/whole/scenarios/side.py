"""One of two sides: a server, an app, and a worker that is there for all scenarios; more workers where one asks."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager

import redis
from amqp.exceptions import ChannelError
from celery.result import AsyncResult, allow_join_result

from ...support.apps import parity
from ...support.processes import ROOT, start_worker, wait_until

TRANSPORT = {"stock": "", "ours": "celery_affinity:Transport"}
APP = "tests.support.apps.parity"

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Side:
    def __init__(self, name, server):
        self.name, self.url = name, server.url
        self.redis = redis.Redis.from_url(server.url)
        self.app = self.new_app()
        self.worker = None

    def new_app(self, **settings):
        return parity.make_app(self.url, TRANSPORT[self.name], **settings)

    def tasks(self, app=None):
        return Tasks(app or self.app)

    # -- processes

    def environment(self):
        """Return the environment that tells a process of its side."""
        # Root may run workers that take pickles: in a container one often is.
        return {"BROKER_URL": self.url, "TRANSPORT": TRANSPORT[self.name], "C_FORCE_ROOT": "1"}

    def start_worker(self, name, *queues, settings=None, extra=(), env=None, ready=True, **options):
        env = {**self.environment(), "SETTINGS": json.dumps(settings or {}), **(env or {})}
        options = {"concurrency": 2, **options}
        worker = start_worker(APP, self.url, queues, name=name, extra=extra, env=env, **options)
        if ready:
            worker.wait_ready(60)
        return worker

    def celery(self, *commands):
        """Run commands of the command line, one after the other in one process; return what each printed."""
        program = f"import json, sys\nfrom {__name__} import run_commands\nrun_commands(json.loads(sys.argv[1]))"
        done = subprocess.run(
            [sys.executable, "-c", program, json.dumps(commands)],
            cwd=ROOT,
            env={**os.environ, **self.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def a_worker(self, name, *queues, **options):
        extra = ["--without-gossip", "--without-mingle", *options.pop("extra", ())]  # mingling takes a second
        worker = self.start_worker(name, *queues, extra=extra, **options)
        try:
            yield worker
        finally:
            worker.end()

    # -- observations

    def outcome(self, result, timeout=20):
        """Return the state of a result that is there by then, and its value; ids in it differ from run to run."""
        with allow_join_result():  # an eager task leaves this thread thinking of itself as a worker
            value = result.get(timeout=timeout, propagate=False)
        return [result.state, plain(value)]

    def failure(self, result, timeout=20):
        """Return the type of the error in which a task ended."""
        state, value = self.outcome(result, timeout)
        return [state, value[0]]

    def records(self, key, count):
        """Return the records of tasks, once there are *count*."""
        wait_until(lambda: self.redis.llen(f"record:{key}") >= count, 20, f"{count} of {key!r}: {self.so_far(key)}")
        return self.so_far(key)

    def so_far(self, key):
        return [json.loads(each) for each in self.redis.lrange(f"record:{key}", 0, -1)]

    def let_go(self, key, count=1):
        self.redis.rpush(f"go:{key}", *["go"] * count)

    def size(self, queue):
        """Return how many messages wait in a queue, as kombu tells it; an empty queue does not exist."""
        with self.app.connection_for_write() as connection:
            try:
                return connection.default_channel.queue_declare(queue, passive=True).message_count
            except ChannelError:
                return 0

    def result(self, task_id, app=None):
        return AsyncResult(task_id, app=app or self.app)

    def inspect(self, *nodes, timeout=10):
        """Return an inspection that ends with the last reply."""
        return self.app.control.inspect(nodes or None, timeout=timeout, limit=max(1, len(nodes)))

    def close(self):
        self.app.close()
        self.redis.close()


class Tasks:
    """The tasks of an app, by their short names."""

    def __init__(self, app):
        self._app = app

    def __getattr__(self, name):
        return self._app.tasks[f"parity.{name}"]


def plain(value):
    """Return a value without the parts that differ from run to run."""
    if isinstance(value, BaseException):
        return [type(value).__name__, plain(str(value))]
    if isinstance(value, str):
        return _ID.sub("<id>", value)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def run_commands(commands):
    """Write, as JSON, what `celery` says to each command, and how it ended."""
    from celery.bin.celery import celery
    from click.testing import CliRunner

    replies = []
    for command in commands:
        result = CliRunner().invoke(celery, ["-A", APP, *command])
        replies.append([result.exit_code, type(result.exception).__name__, result.output])
    print(json.dumps(replies))
