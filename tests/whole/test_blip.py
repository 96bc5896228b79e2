"""Connections break while tasks run: stock Celery runs these tasks again, this transport does not."""

import json
import time

import pytest
import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.apps import APP, app_for
from ..support.fleet import in_time
from ..support.ledger import Ledger
from ..support.processes import start_worker, wait_until
from .chaos.proxy import Proxy

JOBS = tuple(f"job-{number}" for number in range(4))
OURS, STOCK = "celery_affinity:Transport", "redis"


def blip_during_jobs(fleet, pool, transport):
    """Cut all connections while all jobs run on a worker with *transport*; wait for their results."""
    env = {"LEDGER": str(fleet.ledger.path), "TRANSPORT": transport}
    worker = start_worker(APP, fleet.url, ["pdf"], pool=pool, concurrency=len(JOBS), env=env)
    worker.wait_ready(30)
    with app_for(fleet.url, result_backend=fleet.url, broker_transport=transport) as producer:
        results = [producer.send_task(f"{APP}.late", (job, 4), queue="pdf") for job in JOBS]
        wait_until(lambda: len(fleet.ledger.starts()) == len(JOBS), 15, f"all run\n{worker.log()}")
        fleet.redis.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: "Connection to broker lost" in worker.log(), 10, "the worker sees it")
        assert sorted(result.get(timeout=20) for result in results) == sorted(JOBS)


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_late_acks_arrive_after_a_blip(fleet, pool):
    blip_during_jobs(fleet, pool, OURS)
    wait_until(fleet.all_slots_are_free, 10, "all acks arrived")
    assert sum(each.pending for each in fleet.report.status().types) == 0
    assert fleet.tasks["late"].delay("next").get(timeout=10) == "next"
    assert fleet.ledger.starts() == {**dict.fromkeys(JOBS, 1), "next": 1}


def test_stock_celery_reruns_late_tasks_after_a_blip(fleet):
    """If this fails, Celery has fixed its behaviour: change the docs."""
    blip_during_jobs(fleet, "prefork", STOCK)
    wait_until(lambda: sum(fleet.ledger.starts().values()) > len(JOBS), 20, "they run again")


def test_outage_beyond_the_worker_timeout_repeats_no_job(tmp_path, valkey, load_app):
    ledger = Ledger(tmp_path / "ledger")
    timeout_s = 2
    with EmbeddedServer(directory=tmp_path / "server", options=("--appendonly", "yes")) as server:
        env = {"LEDGER": str(ledger.path), "WORKER_TIMEOUT": str(timeout_s), "HEARTBEAT_INTERVAL": "0.5"}
        env["RESULT_URL"] = valkey.url
        workers = [
            start_worker(APP, server.url, ["pdf"], pool=pool, concurrency=2, env=env) for pool in ("prefork", "threads")
        ]
        for worker in workers:
            worker.wait_ready(30)
        with app_for(server.url) as producer:
            for job in JOBS:
                producer.send_task(f"{APP}.late", (job, 3 * timeout_s + 4), queue="pdf")
        wait_until(lambda: len(ledger.starts()) == len(JOBS), 15, "all run")
        server.kill()
        time.sleep(3 * timeout_s)  # the outage
        server.start()
        wait_until(lambda: len(ledger.ends()) == len(JOBS), 30, "all end")
        with redis.Redis.from_url(server.url) as client:
            status = Report(Reader(client, Keys())).status
            wait_until(lambda: sum(each.free for each in status().workers) == len(JOBS), 20, "all acks arrived")
            assert sum(each.pending for each in status().types) == 0
    assert ledger.starts() == dict.fromkeys(JOBS, 1)


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_connection_stalled_in_a_broadcast_is_replaced(fleet, pool):
    proxy = Proxy(int(fleet.redis.connection_pool.connection_kwargs["port"]))
    try:
        env = {"LEDGER": str(fleet.ledger.path), "CONF": json.dumps({"broker_connection_timeout": 1.0})}
        worker = start_worker(APP, proxy.url("worker"), ["pdf"], pool=pool, env=env)
        worker.wait_ready(30)
        proxy.stall_in("worker", b"pmessage")
        fleet.app.control.broadcast("ping")
        wait_until(lambda: "Connection to broker lost" in worker.log(), 20, "the worker abandons the connection")
        assert fleet.tasks["late"].delay("job").get(timeout=20) == "job"
    finally:
        proxy.close()
