"""``celery affinity metrics``: the metrics over HTTP, without an extra."""

import os
import re
import select
import socket
import sys
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from celery_affinity.embedded.server import EmbeddedServer

from ..support.apps import APP
from ..support.endless_requests import status_of, why_not_bounded
from ..support.processes import Process, wait_until


def start(url, *words):
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "metrics", *words]
    return Process("metrics", command, {"BROKER_URL": url, "LEDGER": os.devnull})


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def value(url, name):
    families = text_string_to_metric_families(get(url)[1])
    found = {sample.name: sample.value for each in families for sample in each.samples}
    return found.get(f"celery_affinity_{name}")


def test_prometheus_reads_the_metrics_and_whether_the_broker_answers():
    with EmbeddedServer() as server:
        process = start(server.url, "--port", "0")
        process.wait_for("metrics ready on", 60)
        url = re.search(r"http://127.0.0.1:\d+/metrics", process.log())[0]
        assert get(url)[0].startswith("text/plain; version=0.0.4")
        assert (value(url, "up"), value(url, "scheduled_jobs")) == (1, 0)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(url.replace("metrics", "elsewhere"))
        server.kill()
        assert (value(url, "up"), value(url, "scheduled_jobs")) == (0, None)
        server.start()
        wait_until(lambda: value(url, "up") == 1, 20, "the figures are back")
        process.term()
        assert process.wait(20) == 0


def test_once_prints_them(redis_client, valkey):
    process = start(valkey.url, "--once")
    assert process.wait(60) == 0
    assert "celery_affinity_up 1" in process.log()


def test_endless_requests_for_metrics_do_not_fill_memory(redis_client, valkey):
    process = start(valkey.url, "--port", "0")
    process.wait_for("metrics ready on", 60)
    url = re.search(r"http://127.0.0.1:(\d+)/metrics", process.log())

    def connect():
        return socket.create_connection(("127.0.0.1", int(url[1])), timeout=20)

    assert not why_not_bounded(process.pid, connect, lambda: value(url[0], "up") == 1)
    assert "Traceback" not in process.log()
    held = [connect() for _ in range(50)]
    assert status_of(connect()) is None, "a connection above the limit is closed"
    assert not select.select(held, [], [], 0)[0], "the others are open"
    for client in held:
        client.close()
    wait_until(lambda: is_answered(url[0]), 20, "their places are free")
    process.term()
    assert process.wait(20) == 0


def is_answered(url):
    try:
        return value(url, "up") == 1
    except OSError:
        return False
