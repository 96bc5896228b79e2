"""One of two sides: a server, an app, and a worker for all scenarios, which may start further workers."""

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

#: Options of a control command: wait for the reply of one worker.
REPLY = {"reply": True, "timeout": 10, "limit": 1}

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
        # The user may be root in a container; C_FORCE_ROOT allows root to run workers that accept pickle.
        return {"BROKER_URL": self.url, "TRANSPORT": TRANSPORT[self.name], "C_FORCE_ROOT": "1"}

    def start_worker(self, name, *queues, settings=None, extra=(), env=None, ready=True, **options):
        env = {**self.environment(), "SETTINGS": json.dumps(settings or {}), **(env or {})}
        options = {"concurrency": 2, **options}
        worker = start_worker(APP, self.url, queues, name=name, extra=extra, env=env, **options)
        if ready:
            worker.wait_ready(60)
        return worker

    def celery(self, *commands):
        """Run ``celery`` commands in one process; return their exit codes, errors and outputs."""
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
    def running_worker(self, name, *queues, **options):
        extra = ["--without-gossip", "--without-mingle", *options.pop("extra", ())]  # mingling takes a second
        worker = self.start_worker(name, *queues, extra=extra, **options)
        try:
            yield worker
        finally:
            worker.end()

    # -- observations

    def outcome(self, result, timeout=20):
        """Return the state and the value of a result, without ids."""
        with allow_join_result():  # after an eager task, Celery treats this thread as a worker
            value = result.get(timeout=timeout, propagate=False)
        return [result.state, plain(value)]

    def failure(self, result, timeout=20):
        """Return the state and the error type of a failed task."""
        state, value = self.outcome(result, timeout)
        return [state, value[0]]

    def records(self, key, count):
        """Wait until tasks have written *count* records; return them."""
        wait_until(
            lambda: self.redis.llen(f"record:{key}") >= count, 20, f"{count} of {key!r}: {self.current_records(key)}"
        )
        return self.current_records(key)

    def current_records(self, key):
        return [json.loads(each) for each in self.redis.lrange(f"record:{key}", 0, -1)]

    def release(self, key, count=1):
        self.redis.rpush(f"go:{key}", *["go"] * count)

    def size(self, queue):
        """Return the number of messages in a queue, from kombu; an empty queue does not exist."""
        with self.app.connection_for_write() as connection:
            try:
                return connection.default_channel.queue_declare(queue, passive=True).message_count
            except ChannelError:
                return 0

    def result(self, task_id, app=None):
        return AsyncResult(task_id, app=app or self.app)

    def inspect(self, *nodes, timeout=10):
        """Return an inspection that does not wait after the last reply."""
        return self.app.control.inspect(nodes or None, timeout=timeout, limit=max(1, len(nodes)))

    def close(self):
        self.app.close()
        self.redis.close()


class Tasks:
    """The tasks of an app by short name."""

    def __init__(self, app):
        self._app = app

    def __getattr__(self, name):
        return self._app.tasks[f"parity.{name}"]


def plain(value):
    """Return a value without ids, which differ between runs."""
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
    """Print a JSON list with the exit code, the error and the output of each ``celery`` command."""
    from celery.bin.celery import celery
    from click.testing import CliRunner

    replies = []
    for command in commands:
        result = CliRunner().invoke(celery, ["-A", APP, *command])
        replies.append([result.exit_code, type(result.exception).__name__, result.output])
    print(json.dumps(replies))
