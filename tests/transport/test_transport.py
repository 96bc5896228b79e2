"""The transport on real servers: lost connections, restarts, failover, TLS, and passwords hidden from logs."""

import os
import re
import subprocess
import sys
import time
import uuid

import pytest
import redis
from kombu import Connection, Queue
from kombu.exceptions import OperationalError
from redis.exceptions import NoScriptError

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys
from celery_affinity.transport.channel import Channel

from ..support.apps import APP
from ..support.certificates import tls_server
from ..support.fleet import in_time
from ..support.ledger import Ledger
from ..support.processes import Process, run_celery, start_worker, wait_until
from ..support.sentinel import Sentinel
from ..support.servers import needs_tls


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


def report_of(server):
    return Report(Reader(redis.Redis.from_url(server.url), Keys()))


def test_missing_script_is_a_lost_connection():
    # redis-py loads a missing kombu script and calls it once. Without this, a flush in between would end a worker.
    assert NoScriptError in Connection("redis://", transport="celery_affinity:Transport").connection_errors


def joins(report, count=1):
    return lambda: len(report.status().workers) == count


def publish(url, task, *calls, env=None):
    """Publish *calls* from a separate producer process, which takes one to several seconds to start."""
    code = f"from {APP} import app\nfor args in {calls!r}: app.send_task('{APP}.{task}', args, affinity='pdf')"
    env = {**os.environ, "BROKER_URL": url, **(env or {})}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_lost_connection_reruns_no_job(valkey, redis_client, ledger, pool):
    worker = start_worker(APP, valkey.url, ["pdf"], pool=pool, concurrency=3, env={"LEDGER": str(ledger.path)})
    report = report_of(valkey)
    wait_until(joins(report), 30, worker.log())
    publish(valkey.url, "late", *((f"job-{number}", 4) for number in range(3)))
    wait_until(lambda: len(ledger.starts()) == 3, 10, "all run")
    cut = redis_client.client_kill_filter(_type="normal", skipme=True)
    assert cut, "connections were cut"
    worker.wait_for("Trying to re-establish the connection", 10)
    wait_until(lambda: len(ledger.ends()) == 3, 15, "all end")
    wait_until(lambda: report.status().workers[0].free == 3, 10, "their slots are free")
    publish(valkey.url, "late", ("next", 0))
    wait_until(lambda: ledger.ends()["next"], 10, "the worker continues")
    assert ledger.starts() == {"job-0": 1, "job-1": 1, "job-2": 1, "next": 1}
    states = [redis_client.hget(key, "state") for key in redis_client.scan_iter(Keys().key("job", "*"))]
    assert set(states) == {b"done"}


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_repeated_connection_losses_lose_and_rerun_no_job(valkey, redis_client, ledger, pool):
    jobs, cuts = 1500, 6
    env = {"LEDGER": str(ledger.path), "HEARTBEAT_INTERVAL": "1", "ACKS_LATE": "1"}
    workers = [
        start_worker(APP, valkey.url, ["pdf"], pool=pool, concurrency=3, name=f"{pool}-{number}", env=env)
        for number in range(2)
    ]
    report = report_of(valkey)
    wait_until(joins(report, 2), 30, workers[0].log())
    code = f"from {APP} import tally\nfor job in range({jobs}): tally.apply_async((job,), affinity='pdf')"
    publisher = Process("publisher", [sys.executable, "-c", code], {"BROKER_URL": valkey.url, **env})
    for cut in range(cuts):
        enough = (cut + 1) * jobs // (cuts + 1)
        wait_until(lambda enough=enough: len(ledger.starts()) >= enough, 60, f"{enough} jobs ran")
        redis_client.client_kill_filter(_type="normal", skipme=True)
    assert publisher.wait(60) == 0, publisher.log()
    wait_until(lambda: len(ledger.starts()) == jobs, 60, "all ran")
    wait_until(lambda: all(worker.free == worker.slots for worker in report.status().workers), 20, "no slot is leaked")
    assert set(ledger.starts().values()) == {1}
    status = report.status()
    assert [each.pending for each in status.types] == [0]
    assert status.dead == 0


def test_connection_lost_while_declaring_loses_no_publish(valkey, redis_client, load_app, monkeypatch):
    app = load_app(APP)
    declare = Channel.queue_declare
    broken = []

    def declare_on_a_broken_connection(channel, *args, **kwargs):
        if not broken:
            broken.append(True)
            raise redis.ConnectionError("cut")
        return declare(channel, *args, **kwargs)

    monkeypatch.setattr(Channel, "queue_declare", declare_on_a_broken_connection)
    app.tasks[f"{APP}.early"].delay("job")
    assert broken
    assert [each.pending for each in report_of(valkey).status().types] == [1]


def test_outage_longer_than_worker_timeout_reruns_no_job(tmp_path, ledger):
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with EmbeddedServer(directory=tmp_path / "data", options=options) as server:
        env = {"LEDGER": str(ledger.path), "WORKER_TIMEOUT": "2", "HEARTBEAT_INTERVAL": "0.5"}
        for name in ("one", "two"):
            start_worker(APP, server.url, ["pdf"], name=name, pool="threads", env=env)
        report = report_of(server)
        wait_until(joins(report, 2), 30, "both join")
        publish(server.url, "late", ("running-1", 12), ("running-2", 12), ("waiting", 0))
        wait_until(lambda: len(ledger.starts()) >= 2, 30, "two run")
        server.kill()
        away_until = time.monotonic() + 6  # three worker timeouts
        wait_until(lambda: time.monotonic() > away_until, 10, "the outage")
        server.start()
        wait_until(lambda: ledger.ends()["waiting"] == 1, 40, "all ended, the waiting one too")
        # Celery may have failed to store a result during the outage, and retries after its own pause.
        wait_until(lambda: [w.free for w in report.status().workers] == [1, 1], 30, "the slots are free")
    assert ledger.starts() == {"running-1": 1, "running-2": 1, "waiting": 1}


def test_worker_switches_to_next_server_of_a_failover_list(ledger):
    with EmbeddedServer() as first, EmbeddedServer() as second:
        url = f"{first.url};{second.url}"
        worker = start_worker(APP, url, ["pdf"], pool="solo", env={"LEDGER": str(ledger.path)})
        wait_until(joins(report_of(first)), 30, worker.log())
        publish(first.url, "late", ("on-the-first",))
        wait_until(lambda: ledger.ends()["on-the-first"], 10, "it runs")
        first.kill()
        wait_until(joins(report_of(second)), 30, worker.log())
        publish(second.url, "late", ("on-the-second",))
        wait_until(lambda: ledger.ends()["on-the-second"], 10, worker.log())


def test_worker_and_producer_connect_through_sentinel(tmp_path, ledger):
    with EmbeddedServer() as master:
        config = tmp_path / "sentinel.conf"
        config.write_text(f"sentinel monitor main 127.0.0.1 {master.port} 1\n")
        with EmbeddedServer(directory=tmp_path, options=(), executable=None) as sentinel_port:
            port = sentinel_port.port
        with Sentinel(port, config) as sentinel:
            env = {"LEDGER": str(ledger.path), "MASTER_NAME": "main", "RESULT_URL": master.url}
            worker = start_worker(APP, sentinel.url, ["pdf"], pool="solo", env=env)
            wait_until(joins(report_of(master)), 30, worker.log())
            publish(sentinel.url, "late", ("job",), env=env)
            wait_until(lambda: ledger.ends()["job"], 10, worker.log())


def test_no_output_contains_the_password(ledger):
    password = f"secret-{uuid.uuid4().hex}"
    with EmbeddedServer(password=password) as server:
        env = {"LEDGER": str(ledger.path)}
        worker = start_worker(APP, server.url, ["pdf"], pool="solo", extra=["--loglevel", "DEBUG"], env=env)
        wait_until(joins(report_of(server)), 30, worker.log())
        publish(server.url, "late", ("job",))
        wait_until(lambda: ledger.ends()["job"], 10, worker.log())
        stats = run_celery("-A", APP, "inspect", "stats", env={**os.environ, "BROKER_URL": server.url, **env})
        assert '"affinity"' in stats.stdout
        wrong = server.url.replace(password, f"{password}-wrong")
        failed = run_celery("-A", APP, "affinity", "status", env={**os.environ, "BROKER_URL": wrong, **env})
        assert failed.returncode == 1
        assert re.search(r"the broker redis://:\*\*@127\.0\.0\.1:\d+/0 does not answer", failed.stderr)
        assert "Traceback" not in failed.stderr
        worker.term()
        worker.wait(10)
        shown = worker.log() + stats.stdout + stats.stderr + failed.stdout + failed.stderr
        assert password not in shown


# -- TLS


@needs_tls
def test_rediss_connects_only_with_a_valid_certificate(tmp_path, ledger):
    with tls_server(tmp_path) as (server, url):
        env = {"LEDGER": str(ledger.path), "RESULT_URL": server.url}
        trusted = f"{url}?ssl_ca_certs={tmp_path / 'ca.pem'}"
        worker = start_worker(APP, trusted, ["pdf"], pool="solo", env=env)
        wait_until(joins(report_of(server)), 30, worker.log())
        publish(trusted, "late", ("job",), env=env)
        wait_until(lambda: ledger.ends()["job"], 10, worker.log())
        with Connection(f"{url}?ssl_cert_reqs=none", transport="celery_affinity:Transport") as connection:
            assert connection.default_channel.client.ping()
        with pytest.raises(OperationalError, match="CERTIFICATE_VERIFY_FAILED"):
            Connection(url, transport="celery_affinity:Transport").ensure_connection(max_retries=1)


@needs_tls
@pytest.mark.parametrize(
    ("certificate", "message"),
    [({"days": -1}, "certificate has expired"), ({"address": "127.0.0.2"}, "IP address mismatch")],
    ids=["expired", "of another host"],
)
def test_rediss_refuses_an_expired_or_foreign_certificate(tmp_path, certificate, message):
    with tls_server(tmp_path, **certificate) as (_, url):
        url += f"?ssl_ca_certs={tmp_path / 'ca.pem'}"
        with pytest.raises(OperationalError, match=message):
            Connection(url, transport="celery_affinity:Transport").ensure_connection(max_retries=1)


@needs_tls
def test_rediss_accepts_a_foreign_certificate_if_configured(tmp_path):
    with tls_server(tmp_path, address="127.0.0.2") as (_, url):
        options = {"ssl_ca_certs": str(tmp_path / "ca.pem"), "ssl_check_hostname": False}
        with Connection(url, transport="celery_affinity:Transport", ssl=options) as connection:
            assert connection.default_channel.client.ping()


# -- a channel that kombu closes between choosing it and publishing: kombu declares queues there, and reconnects itself


@pytest.fixture
def producer(valkey, redis_client):
    with Connection(valkey.url, transport="celery_affinity:Transport") as connection:
        yield connection.Producer(connection.default_channel)


def test_publish_uses_the_new_channel_after_a_reconnect(producer, monkeypatch):
    connection, queue = producer.connection, Queue("list", durable=False)

    def reconnect(*_, **__):
        connection.collect()
        queue(connection.default_channel).declare()

    monkeypatch.setattr(producer, "maybe_declare", reconnect)
    producer.publish("text", routing_key="list", declare=[queue], retry=False)
    assert queue(connection.default_channel).get().payload == "text"


def test_publish_on_a_closed_channel_is_a_lost_connection(producer, monkeypatch):
    monkeypatch.setattr(producer, "maybe_declare", lambda *_, **__: producer.connection.collect())
    with pytest.raises(redis.ConnectionError, match="closed by a reconnect"):
        producer.publish("text", routing_key="list", declare=[Queue("list")], retry=False)
