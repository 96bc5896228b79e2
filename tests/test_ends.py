"""Ends: whatever happens after a task's body, its slot is free again, and the server is told soon."""

from contextlib import contextmanager
from time import sleep

import pytest
import redis
from celery import Celery

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.keys import Keys
from celery_affinity.reader import Reader
from celery_affinity.report import Report

from .ledger import Ledger
from .workers import start_worker, wait_until, wait_until_it_listens

TYPED, ENDS = "tests.apps.typed", "tests.apps.ends"
POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
OURS = "celery_affinity:Transport"


class Pools:
    """A worker of each pool on one server, each with a type of its own, named after its pool."""

    def __init__(self, app_module, server, tmp_path, pools=POOLS, slots=2, **env):
        self.module, self.url = app_module, server.url
        self.ledger = Ledger(tmp_path / "ledger")
        self.redis = redis.Redis.from_url(server.url)
        self.app = Celery("producer", broker=server.url, set_as_current=False)
        self.app.conf.broker_transport = OURS
        env = {"LEDGER": str(self.ledger.path), **env}
        self.workers = {
            pool: start_worker(app_module, server.url, [pool], pool=pool, concurrency=slots, name=pool, env=env)
            for pool in pools
        }
        for pool, worker in self.workers.items():
            worker.wait_ready(60)
            wait_until_it_listens(self.app, pool)

    def close(self):
        self.redis.close()
        self.app.close()

    def send(self, task, job, pool, *args):
        return self.app.send_task(
            f"{TYPED if task in ('early', 'late') else self.module}.{task}", (job, *args), queue=pool
        )

    def status(self):
        return Report(Reader(self.redis, Keys())).status()

    def all_slots_are_free(self):
        workers = self.status().workers
        return len(workers) == len(self.workers) and all(each.free == each.slots for each in workers)

    def claims(self):
        return {job for key in self.redis.scan_iter(Keys().key("claims", "*")) for job in self.redis.hkeys(key)}

    def active(self):
        """Return the names of the tasks that the workers say they run."""
        with self.app.connection_for_write() as connection:  # that of the app's pool broke with the server
            inspect = self.app.control.inspect(timeout=3, limit=len(self.workers), connection=connection)
            replies = wait_until(
                lambda: len(found := inspect.active() or {}) == len(self.workers) and found, 20, "replies"
            )
        return [each["name"] for tasks in replies.values() for each in tasks]

    def logs(self):
        return "\n".join(f"---- {pool}\n{worker.log()[-6000:]}" for pool, worker in self.workers.items())


@contextmanager
def closing(pools):
    try:
        yield pools
    finally:
        pools.close()


@pytest.mark.parametrize("results", ["on the broker's server", "elsewhere"])
def test_a_result_backend_that_is_away_for_a_while_stops_no_pool(tmp_path, results):
    with (
        EmbeddedServer(directory=tmp_path / "broker", options=("--appendonly", "yes")) as broker,
        EmbeddedServer(directory=tmp_path / "results", options=("--appendonly", "yes")) as backend,
    ):
        killed = broker if results == "on the broker's server" else backend
        with closing(Pools(TYPED, broker, tmp_path, RESULT_URL=killed.url)) as pools:
            jobs = {f"{pool}-{task}-{n}" for pool in POOLS for task in ("early", "late") for n in range(30)}
            for job in sorted(jobs, key=lambda each: int(each.rpartition("-")[2])):
                pool, task, n = job.split("-")
                pools.send(task, job, pool, 0.02 + 0.005 * (int(n) % 10))
            wait_until(lambda: len(pools.ledger.ends()) > len(jobs) / 6, 30, "a good part has ended")
            killed.kill()
            sleep(1.5)  # the outage
            killed.start()
            wait_until(lambda: set(pools.ledger.ends()) == jobs, 40, f"all end\n{pools.logs()}")
            wait_until(pools.all_slots_are_free, 20, f"all slots are free\n{pools.logs()}")
            assert set(pools.ledger.starts().values()) == {1}
            assert sum(each.pending for each in pools.status().types) == 0
            assert pools.active() == []


def test_what_ends_while_the_server_is_away_is_told_as_soon_as_it_is_back(tmp_path, valkey):
    """Celery's own reconnect comes seconds later: it tries after 2 s, 4 s more and 6 s more."""
    with (
        EmbeddedServer(directory=tmp_path / "broker", options=("--appendonly", "yes")) as broker,
        closing(Pools(TYPED, broker, tmp_path, RESULT_URL=valkey.url)) as pools,
    ):
        jobs = {f"{pool}-{task}" for pool in POOLS for task in ("early", "late")} - {"solo-late"}
        for job in jobs:
            pool, task = job.split("-")
            pools.send(task, job, pool, 2)
        wait_until(lambda: set(pools.ledger.starts()) == jobs, 20, "all run")
        broker.kill()
        wait_until(lambda: set(pools.ledger.ends()) == jobs, 20, "all end")
        wait_until(lambda: "in 6.00 seconds" in pools.workers["prefork"].log(), 20, "it waits long for its next try")
        broker.start()
        wait_until(lambda: not pools.claims(), 3, f"all are told\n{pools.logs()}")
        assert pools.ledger.starts() == dict.fromkeys(jobs, 1)
        wait_until(pools.all_slots_are_free, 20, f"all are back\n{pools.logs()}")


#: All that fails after a task's body, with how often it runs if it is acked late: once more if nobody could say what
#: became of it.
FAILS = {
    "on_failure_fails": 1,
    "on_failure_exits": 1,
    "on_failure_shuts_down": 1,
    "rejects_after_its_return": 1,
    "signals_fail": 1,
    "signals_fail_after_a_failure": 1,
    "no_memory_for_the_result": 2,
    "no_place_for_the_result": 1,
    "no_name_for_the_result": 1,
}


@pytest.mark.parametrize("acks_late", [False, True])
def test_whatever_fails_after_a_tasks_body_frees_its_slot(tmp_path, valkey, redis_client, acks_late):
    late = {"ACKS_LATE": "1", "MAX_DELIVERIES": "2"} if acks_late else {}
    in_process = POOLS[1:]
    with closing(Pools(ENDS, valkey, tmp_path, pools=in_process, slots=2, **late)) as pools:
        runs = {}
        for pool in in_process:
            for task, times in FAILS.items():
                if (pool, task) != ("solo", "on_failure_shuts_down"):  # as its author wishes
                    runs[f"{pool}-{task}"] = times if acks_late else 1
                    pools.send(task, f"{pool}-{task}", pool)
        wait_until(lambda: set(pools.ledger.starts()) == set(runs), 30, f"all run\n{pools.logs()}")
        wait_until(lambda: pools.all_slots_are_free() and not pools.claims(), 20, f"all end\n{pools.logs()}")
        wait_until(lambda: pools.ledger.starts() == runs, 10, f"each so often\n{pools.logs()}")
        assert "Connection to broker lost" not in pools.logs()
