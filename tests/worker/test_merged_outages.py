"""The broker fails before a merged run has read its calls: the run waits, and no caller loses its result."""

import json
import os
import signal
import time
from contextlib import contextmanager

import pytest
import redis

from celery_affinity.embedded import EmbeddedServer

from ..support.apps import app_for
from ..support.fleet import POOLS, in_time
from ..support.merging import SOON_S, Merging
from ..support.processes import wait_until

pytestmark = pytest.mark.whole

#: Seconds of an outage: longer than the clients' retries and the worker timeout of 5 s.
OUTAGE_S = 7.0


@pytest.fixture
def broker(tmp_path):
    with EmbeddedServer(directory=tmp_path / "server", options=("--appendonly", "yes")) as server:
        yield server


@contextmanager
def stopped(server):
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@contextmanager
def killed(server):
    server.kill()
    yield
    server.start()


@pytest.fixture
def far(broker, valkey, tmp_path):
    """Merged calls whose results are on another server."""
    with (
        redis.Redis.from_url(broker.url) as client,
        app_for(broker.url, result_backend=valkey.url) as far,
    ):
        yield Merging(far, broker, client, tmp_path / "ledger")


def send(far, name, *numbers):
    send_task = far.app.send_task
    return [send_task(name, ("HH", [n]), affinity="merging", merge_key="HH") for n in numbers]


def go_into(far, outage, broker, worker, until, seconds=OUTAGE_S):
    """Start the calls, and open the gate during an outage of *broker*. End it *seconds* after *until* is in the log."""
    far.go()
    wait_until(lambda: far.runs("gate"), 60, "it runs")
    with outage(broker):
        far.ledger.with_name("ledger.gate").touch()
        wait_until(lambda: until in worker.log(), 60, worker.log())
        time.sleep(seconds)  # the outage


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", in_time("gated_late", "gated_early"))
@pytest.mark.parametrize("outage", [stopped, pytest.param(killed, marks=pytest.mark.slow)])
def test_run_with_unreadable_calls_waits_for_the_broker(far, broker, valkey, outage, name, pool):
    results = send(far, name, 0, 1, 2)
    worker = far.start(pool, RESULT_URL=valkey.url)
    go_into(far, outage, broker, worker, "cannot be read")
    assert [each.get(timeout=60) for each in results] == [[0, 1, 2]] * 3
    assert far.runs(name) == [["HH", [0, 1, 2]]]


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["overlaps_gated_late", pytest.param("overlaps_gated_early", marks=pytest.mark.slow)])
@pytest.mark.parametrize("outage", [killed, pytest.param(stopped, marks=pytest.mark.slow)])
def test_calls_refused_during_an_outage_are_the_next_run(far, broker, valkey, outage, name, pool):
    results = send(far, name, 0, 1, 5, 6)
    worker = far.start(pool, RESULT_URL=valkey.url)
    go_into(far, outage, broker, worker, "cannot be sent back")
    assert [each.get(timeout=60) for each in results] == [[0, 1], [0, 1], [5, 6], [5, 6]]
    assert sorted(far.runs(name)) == [["HH", [0, 1]], ["HH", [5, 6]]]  # in any order: a slot is free for each
    far.leaves_nothing()


@pytest.mark.parametrize("pool", ["prefork", *(pytest.param(each, marks=pytest.mark.slow) for each in POOLS[1:])])
@pytest.mark.parametrize("name", ["overlaps_gated_late", pytest.param("gated_late", marks=pytest.mark.slow)])
def test_run_that_waited_too_long_returns_all_calls_uncounted(far, broker, valkey, name, pool):
    results = send(far, name, 0, 1, 2, 5)
    conf = json.dumps({"affinity_max_deliveries": 1})
    worker = far.start(pool, RESULT_URL=valkey.url, PATIENCE_S="1", CONF=conf)
    go_into(far, killed, broker, worker, "NotStartedError", seconds=0)
    whole = [[0, 1, 2, 5]] * 4 if name == "gated_late" else [[0, 1, 2]] * 3 + [[5]]
    assert [each.get(timeout=60) for each in results] == whole
    runs = [["HH", [0, 1, 2, 5]]] if name == "gated_late" else [["HH", [0, 1, 2]], ["HH", [5]]]
    assert sorted(far.runs(name)) == runs  # in any order: a slot is free for each


def test_run_without_its_claim_does_not_run_partly(merging, redis_client):
    for n in range(3):
        merging.task("gated_late").delay("HH", [n])
    worker = merging.start()
    merging.go()
    wait_until(lambda: merging.runs("gate"), SOON_S, worker.log())
    (batch,) = redis_client.keys("*:job:*[*]")
    redis_client.hset(batch, "fence", "999999")  # as if another worker had claimed it
    merging.ledger.with_name("ledger.gate").touch()
    wait_until(lambda: "] ignored" in worker.log(), SOON_S, worker.log())
    assert not merging.runs("gated_late")
