"""A broker that goes away before a merged run has read its calls: the run waits, and no caller loses anything."""

import os
import signal
import time
from contextlib import contextmanager

import pytest
import redis
from celery import Celery

from celery_affinity.embedded import EmbeddedServer

from ..support.merging import APP, SOON_S, Merging
from ..support.processes import wait_until

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


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["gated_early", "gated_late"])
@pytest.mark.parametrize("outage", [stopped, pytest.param(killed, marks=pytest.mark.slow)])
def test_a_run_whose_calls_cannot_be_read_waits_for_the_broker(broker, valkey, tmp_path, outage, name, pool):
    with (
        redis.Redis.from_url(broker.url) as client,
        Celery("far", broker=broker.url, backend=valkey.url, set_as_current=False) as far,
    ):
        far.conf.broker_transport = "celery_affinity:Transport"
        merging = Merging(far, broker, client, tmp_path / "ledger")
        results = [far.send_task(name, ("HH", [n]), affinity="merging", merge_key="HH") for n in range(3)]
        worker = merging.start(pool, RESULT_URL=valkey.url)
        merging.go()
        wait_until(lambda: merging.runs("gate"), SOON_S, worker.log())
        with outage(broker):
            merging.ledger.with_name("ledger.gate").touch()
            wait_until(lambda: "cannot be read yet" in worker.log(), 60, worker.log())
            time.sleep(OUTAGE_S)  # the outage
        assert [each.get(timeout=60) for each in results] == [[0, 1, 2]] * 3
        assert merging.runs(name) == [["HH", [0, 1, 2]]]


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
