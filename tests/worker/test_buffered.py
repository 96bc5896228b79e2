"""Tasks with a buffering strategy, such as celery-batches, behave like on stock Celery."""

import json
import os
import signal
import time
from contextlib import contextmanager

import pytest

from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.apps import app_for, forget_connections
from ..support.fleet import in_time
from ..support.ledger import whole_lines
from ..support.processes import start_worker, wait_until

APP = "tests.support.apps.buffering"

#: Seconds until these workers release a leaked claim. The default is 30 s.
NOWHERE_FOR_S = 0.5


class Buffers:
    """The app's workers, a producer, and the recorded runs."""

    def __init__(self, server, redis_client, tmp_path):
        self.url, self.redis, self.path = server.url, redis_client, tmp_path / "ledger"
        self.hold = tmp_path / "hold"
        self.report = Report(Reader(redis_client, Keys()))
        self.app = app_for(server.url, result_backend=server.url)

    def send(self, task, *numbers, **options):
        return [self.app.send_task(f"{APP}.{task}", (each,), queue="pdf", **options) for each in numbers]

    def start(self, name="one", *, pool="prefork", concurrency=2, conf=None, nowhere_for_s=NOWHERE_FOR_S, **options):
        env = {
            "LEDGER": str(self.path),
            "HOLD": str(self.hold),
            "NOWHERE_FOR_S": str(nowhere_for_s),
            "OPTIONS": json.dumps(options),
            "CONF": json.dumps({"affinity_heartbeat_interval": 1, **(conf or {})}),
        }
        worker = start_worker(APP, self.url, ["pdf"], name=name, pool=pool, concurrency=concurrency, env=env)
        worker.wait_ready(60)
        return worker

    def entries(self, event):
        found = map(json.loads, whole_lines(self.path))
        return [each for each in found if each["event"] == event]

    def jobs(self, event):
        return [each["jobs"] for each in self.entries(event)]

    def sizes(self, event="end"):
        return sorted((len(jobs) for jobs in self.jobs(event)), reverse=True)

    def ran(self, event="end"):
        """Return the call numbers of each run, in order."""
        return sorted(number for jobs in self.jobs(event) for number in jobs)

    def claims(self):
        return sum(self.redis.hlen(key) for key in self.redis.scan_iter(Keys().key("claims", "*")))

    def all_slots_are_free(self):
        workers = self.report.status().workers
        return self.claims() == 0 and bool(workers) and all(worker.free == worker.slots for worker in workers)


@contextmanager
def closing(buffers):
    try:
        yield buffers
    finally:
        forget_connections(buffers.app)
        buffers.app.close()


@pytest.fixture
def buffers(server, redis_client, tmp_path):
    with closing(Buffers(server, redis_client, tmp_path)) as opened:
        yield opened


def wait_of_an_ordinary_task_s(buffers):
    sent_s = time.time()
    buffers.send("ordinary", 1)[0].get(timeout=60)
    return buffers.entries("ordinary")[-1]["time_s"] - sent_s


def check_batches(buffers, worker, results):
    """Check that 37 calls run in batches of 10, 10, 10 and 7, and that an ordinary task is not delayed."""
    wait_until(lambda: buffers.sizes() == [10, 10, 10], 20, f"whole batches, not {buffers.sizes()}\n{worker.log()}")
    wait_until(lambda: buffers.claims() == 7, 10, "the rest is in the buffer")
    assert wait_of_an_ordinary_task_s(buffers) < 1
    wait_until(lambda: len(buffers.sizes()) == 4, 60, f"the rest after the interval\n{worker.log()}")
    assert buffers.sizes() == [10, 10, 10, 7]
    assert buffers.ran() == list(range(37)), "each call is in one batch"
    assert [each.get(timeout=10) for each in results] == list(range(37))
    wait_until(buffers.all_slots_are_free, 10, "no slot is lost")
    assert "Traceback" not in worker.log()
    assert "is freed" not in worker.log()


@pytest.mark.parametrize(
    ("pool", "late"),
    [
        ("prefork", True),
        ("threads", False),
        pytest.param("prefork", False, marks=pytest.mark.slow),
        pytest.param("threads", True, marks=pytest.mark.slow),
    ],
)
def test_celery_batches_gathers_batches_like_stock_celery(buffers, valkey, pool, late):
    pytest.importorskip("celery_batches")
    results = buffers.send("batch", *range(37))
    worker = buffers.start(pool=pool, acks_late=late, flush_every=10, flush_interval=8)
    check_batches(buffers, worker, results)


@pytest.mark.slow
@pytest.mark.parametrize("late", [True, False])
def test_each_call_ran_in_one_batch_after_45_seconds(buffers, valkey, late):
    pytest.importorskip("celery_batches")
    results = buffers.send("batch", *range(37))
    worker = buffers.start(nowhere_for_s=30, acks_late=late, flush_every=10, flush_interval=45)
    check_batches(buffers, worker, results)


def test_another_worker_runs_calls_of_a_killed_worker(buffers, valkey):
    pytest.importorskip("celery_batches")
    buffers.hold.touch()
    buffers.send("batch", *range(17))
    killed = buffers.start("killed", acks_late=True, flush_every=10, flush_interval=60)
    wait_until(lambda: buffers.sizes("start") == [10], 20, f"a batch runs\n{killed.log()}")
    wait_until(lambda: buffers.claims() == 17, 10, "the others are in the buffer")
    killed.kill()
    buffers.hold.unlink()
    other = buffers.start("other", acks_late=True, flush_every=10, flush_interval=1)
    wait_until(lambda: buffers.ran() == list(range(17)), 30, f"all ran\n{other.log()}")


def deliveries(buffers):
    keys = buffers.redis.scan_iter(Keys().key("job", "*"))
    return sorted(int(buffers.redis.hget(key, "deliveries") or 0) for key in keys)


def test_warm_shutdown_returns_buffered_calls_without_a_delivery(buffers, valkey):
    worker = buffers.start(flush_every=10)
    buffers.send("gather", *range(7))
    wait_until(lambda: buffers.claims() == 7, 10, "all are in the buffer")
    assert wait_of_an_ordinary_task_s(buffers) < 1
    worker.term()
    assert worker.wait(15) == 0
    assert "Traceback" not in worker.log()
    assert buffers.report.status().types[0].pending == 7
    buffers.start("next", flush_every=7)
    wait_until(lambda: buffers.ran() == list(range(7)), 20, "they ran elsewhere")
    assert set(deliveries(buffers)) <= {0, 1}


def test_warm_shutdown_ends_a_running_batch_first(buffers, valkey):
    buffers.hold.touch()
    worker = buffers.start(flush_every=10, acks_late=True)
    buffers.send("gather", *range(13))
    wait_until(lambda: buffers.sizes("start") == [10] and buffers.claims() == 13, 20, "a batch runs, and three wait")
    worker.term()
    worker.wait_for("shutdown", 10)
    buffers.hold.unlink()
    assert worker.wait(20) == 0
    assert buffers.ran() == list(range(10))
    assert buffers.report.status().types[0].pending == 3
    assert buffers.claims() == 0


def test_call_dropped_by_a_strategy_is_requeued(buffers, valkey):
    worker = buffers.start(flush_every=2, conf={"affinity_max_deliveries": 2})
    buffers.send("drop", 1, 2)
    wait_until(lambda: len(buffers.jobs("dropped")) == 2, 20, f"both came again\n{worker.log()}")
    wait_until(lambda: buffers.report.status().dead == 2, 20, "they are dead letters in the end")
    wait_until(buffers.all_slots_are_free, 10, "no slot is lost")


def test_killed_process_of_a_batch_loses_no_call(buffers, valkey):
    buffers.hold.touch()
    worker = buffers.start(flush_every=3, acks_late=True)
    buffers.send("gather", *range(3))
    wait_until(lambda: buffers.sizes("start") == [3], 20, "a batch runs")
    os.kill(buffers.entries("start")[0]["pid"], signal.SIGKILL)
    buffers.hold.unlink()
    wait_until(lambda: buffers.ran() == [0, 1, 2], 30, f"all ran\n{worker.log()}")
    wait_until(buffers.all_slots_are_free, 10, "no slot is lost")


@pytest.mark.parametrize("pool", in_time("prefork", "threads", "solo", "gevent", "eventlet"))
def test_own_strategy_gathers_more_calls_than_slots(buffers, valkey, pool):
    worker = buffers.start(pool=pool, flush_every=5)
    buffers.send("gather", *range(17))
    wait_until(lambda: buffers.sizes() == [5, 5, 5], 20, f"whole batches\n{worker.log()}")
    wait_until(lambda: buffers.claims() == 2, 10, "the rest is in the buffer")
    assert wait_of_an_ordinary_task_s(buffers) < 1
    buffers.send("gather", 17, 18, 19)
    wait_until(lambda: buffers.ran() == list(range(20)), 20, "the rest ran, once")
    wait_until(buffers.all_slots_are_free, 10, "no slot is lost")
    assert "Traceback" not in worker.log()


def test_own_strategy_starts_all_buffered_calls(buffers, valkey):
    worker = buffers.start(concurrency=2, flush_every=6)
    results = buffers.send("delay_start", *range(6))
    assert [each.get(timeout=30) for each in results] == list(range(6)), worker.log()
    wait_until(buffers.all_slots_are_free, 10, "no slot is lost")


def test_running_batch_occupies_a_slot(buffers, valkey):
    buffers.hold.touch()
    buffers.start(concurrency=2, flush_every=3, pool="threads")
    buffers.send("gather", *range(12))
    wait_until(lambda: buffers.sizes("start") == [3, 3], 20, "two batches run")
    wait_until(lambda: buffers.report.status().workers[0].free == 0, 10, "no slot is free")
    assert buffers.claims() == 6, "no call waits in the worker for a slot"
    buffers.hold.unlink()
    wait_until(lambda: buffers.ran() == list(range(12)), 20, "all ran")


def test_buffered_calls_survive_a_reconnect(buffers, valkey):
    worker = buffers.start(flush_every=5, pool="threads")
    buffers.send("gather", *range(3))
    wait_until(lambda: buffers.report.status().workers[0].lent == 3, 10, "they are in the buffer")
    buffers.redis.client_kill_filter(_type="normal", skipme=True)
    worker.wait_for("joined again; still holds 3 jobs", 20)
    buffers.send("gather", 3, 4)
    wait_until(lambda: buffers.ran() == list(range(5)), 20, f"they ran, once\n{worker.log()}")
    wait_until(buffers.all_slots_are_free, 10, "no slot is lost")


def test_celery_batches_runs_a_batch_after_a_reconnect(buffers, valkey):
    pytest.importorskip("celery_batches")
    worker = buffers.start(flush_every=10, flush_interval=4)
    results = buffers.send("batch", *range(3))
    wait_until(lambda: buffers.report.status().workers[0].lent == 3, 10, "they are in the buffer")
    buffers.redis.client_kill_filter(_type="normal", skipme=True)
    worker.wait_for("joined again; still holds 3 jobs", 20)
    assert [each.get(timeout=20) for each in results] == [0, 1, 2]
    assert buffers.ran() == [0, 1, 2]
    wait_until(buffers.all_slots_are_free, 10, "no slot is lost")
