"""A broker that goes away before a merged run has read its calls: the run waits, and no caller loses anything."""

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
from ..support.merging import APP, SOON_S, Merging
from ..support.processes import wait_until

pytestmark = pytest.mark.whole

#: Length of an outage, s: longer than the retries of the clients, and than a worker's timeout, which is 5 s.
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
def merging(broker, valkey, tmp_path):
    """Merged calls whose results are on another server."""
    with (
        redis.Redis.from_url(broker.url) as client,
        app_for(broker.url, result_backend=valkey.url) as far,
    ):
        yield Merging(far, broker, client, tmp_path / "ledger")


def send(merging, name, *numbers):
    send_task = merging.app.send_task
    return [send_task(name, ("HH", [n]), affinity="merging", merge_key="HH") for n in numbers]


def go_into(merging, outage, broker, worker, until, seconds=OUTAGE_S):
    """Let the calls start, and the gate open while *broker* is away: *until* the worker says so, and *seconds* more."""
    merging.go()
    wait_until(lambda: merging.runs("gate"), 60, "it runs")
    with outage(broker):
        merging.ledger.with_name("ledger.gate").touch()
        wait_until(lambda: until in worker.log(), 60, worker.log())
        time.sleep(seconds)  # the outage


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", in_time("gated_late", "gated_early"))
@pytest.mark.parametrize("outage", [stopped, pytest.param(killed, marks=pytest.mark.slow)])
def test_a_run_whose_calls_cannot_be_read_waits_for_the_broker(merging, broker, valkey, outage, name, pool):
    results = send(merging, name, 0, 1, 2)
    worker = merging.start(pool, RESULT_URL=valkey.url)
    go_into(merging, outage, broker, worker, "cannot be read")
    assert [each.get(timeout=60) for each in results] == [[0, 1, 2]] * 3
    assert merging.runs(name) == [["HH", [0, 1, 2]]]


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["overlaps_gated_late", pytest.param("overlaps_gated_early", marks=pytest.mark.slow)])
@pytest.mark.parametrize("outage", [killed, pytest.param(stopped, marks=pytest.mark.slow)])
def test_calls_that_are_refused_while_the_broker_is_away_are_the_next_run(merging, broker, valkey, outage, name, pool):
    results = send(merging, name, 0, 1, 5, 6)
    worker = merging.start(pool, RESULT_URL=valkey.url)
    go_into(merging, outage, broker, worker, "cannot be sent back")
    assert [each.get(timeout=60) for each in results] == [[0, 1], [0, 1], [5, 6], [5, 6]]
    assert sorted(merging.runs(name)) == [["HH", [0, 1]], ["HH", [5, 6]]]  # side by side: a slot is free for each
    merging.leaves_nothing()


@pytest.mark.parametrize("pool", ["prefork", *(pytest.param(each, marks=pytest.mark.slow) for each in POOLS[1:])])
@pytest.mark.parametrize("name", ["overlaps_gated_late", pytest.param("gated_late", marks=pytest.mark.slow)])
def test_a_run_that_has_waited_too_long_is_given_back_with_all_its_calls_and_has_counted_for_none(
    merging, broker, valkey, name, pool
):
    results = send(merging, name, 0, 1, 2, 5)
    conf = json.dumps({"affinity_max_deliveries": 1})
    worker = merging.start(pool, RESULT_URL=valkey.url, PATIENCE_S="1", CONF=conf)
    go_into(merging, killed, broker, worker, "NotStartedError", seconds=0)
    whole = [[0, 1, 2, 5]] * 4 if name == "gated_late" else [[0, 1, 2]] * 3 + [[5]]
    assert [each.get(timeout=60) for each in results] == whole
    runs = [["HH", [0, 1, 2, 5]]] if name == "gated_late" else [["HH", [0, 1, 2]], ["HH", [5]]]
    assert sorted(merging.runs(name)) == runs  # side by side: a slot is free for each


def test_a_run_whose_claim_is_gone_does_not_run_for_a_part_of_its_calls(load_app, valkey, redis_client, tmp_path):
    merging = Merging(load_app(APP), valkey, redis_client, tmp_path / "ledger")
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
