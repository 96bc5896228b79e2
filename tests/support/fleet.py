"""Fleets of real workers, their runs, and the server's view of them."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import kombu.pools
import pytest
import redis

from celery_affinity.reports import dead_letters
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from .apps import APP, app_for
from .ledger import Ledger
from .processes import start_worker, wait_until, wait_until_it_listens

#: Every Celery pool that runs tasks.
POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")


def in_time(first, *others):
    """Return parameters: `make test` runs only the first one, and `make slow` the others."""
    return [first, *(pytest.param(*each, marks=pytest.mark.slow) for each in map(_as_tuple, others))]


def _as_tuple(each):
    return each if isinstance(each, tuple) else (each,)


POOLS_IN_TIME = in_time(*POOLS)

#: Settings of apps that schedule only `pdf` and queues that begin with `exc`.
PARTLY_SCHEDULED = {"affinity_queues": ["pdf", "exc*"], "worker_prefetch_multiplier": 1}


class Fleet:
    """Workers of `tests.support.apps.typed` on one server, their runs, and the server's view of them."""

    def __init__(self, server, redis_client, tmp_path, typed_app):
        self.url = server.url
        self.redis = redis_client
        self.ledger = Ledger(tmp_path / "ledger")
        self.report = Report(Reader(redis_client, Keys()))
        self.app = typed_app
        self.tasks = {name.rpartition(".")[2]: task for name, task in typed_app.tasks.items() if name.startswith(APP)}

    def start(self, name, *queues, pool="prefork", concurrency=1, timeout_s=30, heartbeat_s=5.0, **env):
        env = {"WORKER_TIMEOUT": str(timeout_s), "HEARTBEAT_INTERVAL": str(heartbeat_s), **env}
        env = {"LEDGER": str(self.ledger.path), **env}
        worker = start_worker(APP, self.url, queues, name=name, pool=pool, concurrency=concurrency, env=env)
        wait_until(lambda: name in self.names(), 30, f"{name} joins\n{worker.log()}")
        return worker

    def names(self):
        return {worker.name.partition("@")[0] for worker in self.report.status().workers}

    def dead(self):
        return dead_letters.find_letters(Reader(self.redis, Keys()), dead_letters.LetterFilter())

    def free_slots(self):
        return sum(worker.free for worker in self.report.status().workers)

    def all_slots_are_free(self):
        workers = self.report.status().workers
        return bool(workers) and all(worker.free == worker.slots for worker in workers)

    def acked(self):
        jobs = self.redis.scan_iter(Keys().key("job", "*"))
        return sum(self.redis.hget(job, "acked") == b"1" for job in jobs)

    def ran_on(self, job):
        return [entry.pid for entry in self.ledger.entries() if entry.job == str(job) and entry.event == "start"]


class MixedFleet(Fleet):
    """Workers and a producer that schedule only `pdf` and `excel`."""

    def start(self, name, *queues, conf=PARTLY_SCHEDULED, **options):
        return super().start(name, *queues, CONF=json.dumps(conf), **options)

    def start_stock(self, name, *queues, pool="solo", **conf):
        env = {"LEDGER": str(self.ledger.path), "TRANSPORT": "redis", "PARTLY_SCHEDULED": json.dumps(conf)}
        worker = start_worker(APP, self.url, queues, name=name, pool=pool, env=env)
        worker.wait_ready(30)
        return worker

    def send(self, job, queue, seconds=0.0, task="late", **options):
        return self.tasks[task].apply_async((job, seconds), affinity=queue, **options)

    def lists(self, queue):
        steps = (queue, *(f"{queue}\x06\x16{step}" for step in (3, 6, 9)))
        return [self.redis.llen(step) for step in steps]

    def started(self):
        return [entry.job for entry in self.ledger.entries() if entry.event == "start"]

    def send_from_stock(self, *calls):
        """Publish (task, args, options) from a process with stock Celery, in order."""
        code = f"from {APP} import app\nfor task, args, options in {list(calls)!r}:"
        code += f" app.send_task('{APP}.' + task, args, **options)"
        env = {**os.environ, "BROKER_URL": self.url, "LEDGER": str(self.ledger.path), "TRANSPORT": "redis"}
        subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=30)


class Pools:
    """A worker per pool on one server; its only type has the name of its pool."""

    def __init__(self, app_module, server, tmp_path, pools=POOLS, slots=2, **env):
        self.module, self.url = app_module, server.url
        self.ledger = Ledger(tmp_path / "ledger")
        self._server = server
        self.redis = self._client()
        self.app = app_for(server.url, **json.loads(env.get("CONF", "{}")))  # like the workers
        self._env, self._slots = {"LEDGER": str(self.ledger.path), **env}, slots
        self.workers = {}
        for pool in pools:
            self.start(pool)
        for pool, worker in self.workers.items():
            worker.wait_ready(60)
            wait_until_it_listens(self.app, pool)

    def _client(self):
        return redis.Redis.from_url(self.url)

    def start(self, pool):
        """Start or replace the worker of *pool*."""
        options = {"pool": pool, "concurrency": self._slots, "name": pool, "env": self._env}
        self.workers[pool] = start_worker(self.module, self.url, [pool], **options)

    def close(self):
        self.redis.close()
        self.app.close()
        kombu.pools.reset()  # producers remember declared queues, which the next test's empty server lacks

    def send(self, task, job, pool, *args):
        module = APP if task in ("early", "late") else self.module
        return self.app.send_task(f"{module}.{task}", (job, *args), queue=pool)

    def status(self):
        return Report(Reader(self.redis, Keys())).status()

    def all_slots_are_free(self):
        workers = self.status().workers
        return len(workers) == len(self.workers) and all(each.free == each.slots for each in workers)

    def claims(self):
        return {job for key in self.redis.scan_iter(Keys().key("claims", "*")) for job in self.redis.hkeys(key)}

    def active(self):
        """Return the names of the active tasks that the workers report."""
        with self.app.connection_for_write() as connection:  # the connection in the app's pool broke with the server
            inspect = self.app.control.inspect(timeout=3, limit=len(self.workers), connection=connection)
            replies = wait_until(lambda: len(got := inspect.active() or {}) == len(self.workers) and got, 20, "replies")
        return [each["name"] for tasks in replies.values() for each in tasks]

    def logs(self):
        return "\n".join(f"---- {pool}\n{worker.log()[-6000:]}" for pool, worker in self.workers.items())


class PoolsOnACluster(Pools):
    """Workers whose jobs and results are in a cluster."""

    def __init__(self, app_module, cluster, tmp_path, pools, **env):
        super().__init__(app_module, cluster, tmp_path, pools, RESULT_URL=cluster.url, **env)
        self.app.conf.result_backend = cluster.url

    def _client(self):
        return self._server.client()

    def look(self):
        """Connect to the current owner of the fleet's keys; return the status."""
        self.redis.close()
        self.redis = self._client()
        return self.status()


@contextmanager
def closing(pools):
    try:
        yield pools
    finally:
        pools.close()


def wait_for_state(result, state, within_s=15):
    """Wait until *result* has *state* in Celery's result backend."""
    wait_until(lambda: result.state == state, within_s, f"{state}, not {result.state}")
