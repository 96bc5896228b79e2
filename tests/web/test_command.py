"""`celery affinity web` in its own process, with a real worker."""

import os
import re
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import celery
import httpx
import pytest
import uvicorn

from celery_affinity.web.server import serve

from ..support.apps import APP
from ..support.command import affinity
from ..support.fleet import Fleet
from ..support.processes import Process, wait_until

TOKEN = "t" * 16


@pytest.fixture
def fleet(valkey, redis_client, tmp_path, app):
    """Real workers."""
    return Fleet(valkey, redis_client, tmp_path, app)


def start(url, *words, **env):
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "web", "--port", "0", *words]
    return Process("web", command, {"BROKER_URL": url, "LEDGER": os.devnull, "PYTHONUNBUFFERED": "1", **env})


def url_of(process):
    found = wait_until(lambda: re.search(r"web ready on (\S+)", process.log()), 30, f"it serves: {process.log()}")
    return found[1]


def test_submitted_job_runs_and_its_worker_is_drained(valkey, fleet):
    web = start(valkey.url)
    fleet.start("worker", "pdf", pool="threads")
    with httpx.Client(base_url=url_of(web), timeout=40) as client:
        reply = client.post("/api/jobs", json={"task": f"{APP}.pdf", "args": ["one"]}, headers={"Idempotency-Key": "1"})
        assert reply.status_code == 201
        found = client.get(reply.headers["Location"], params={"wait": 30}).json()
        assert (found["state"], found["worker"].partition("@")[0]) == ("done", "worker")
        assert found["enqueued_s"] <= found["claimed_s"] <= found["ended_s"] <= time.time() + 5
        (worker,) = client.get("/api/workers").json()
        details = client.get(f"/api/workers/{worker['name']}/details?process=1").json()
        assert details["process"]["memory_bytes"] > 10_000_000
        assert details["process"]["versions"]["celery"] == celery.__version__
        assert sum(details["process"]["totals"].values()) > 0
        drained = client.post(f"/api/workers/{worker['name']}/drain")
        assert drained.status_code == 202
        assert "takes no new jobs" in drained.json()["ok"]
        # Before the server knows of the drain, the worker may still get a job, and returns it.
        wait_until(lambda: not client.get("/api/workers").json()[0]["takes_jobs"], 10, "the server knows")
        waits = client.post("/api/jobs", json={"task": f"{APP}.pdf", "args": ["later"]}).json()
        assert waits["state"] == "pending"
        assert client.post(f"/api/workers/{worker['name']}/resume").status_code == 202
        assert client.get(f"/api/jobs/{waits['id']}?wait=30").json()["state"] == "done"
        failed = client.post("/api/jobs", json={"task": f"{APP}.fail", "args": ["two"]}).json()["id"]
        found = client.get(f"/api/jobs/{failed}?wait=30").json()
        assert (found["state"], found["why"]) == ("failed", "ValueError: two")


def test_slow_clients_block_no_other_and_shutdown_is_quick(valkey, redis_client):
    web = start(valkey.url)
    url = httpx.URL(url_of(web))
    slow = [socket.create_connection((url.host, url.port)) for _ in range(100)]
    for number, each in enumerate(slow):
        each.sendall(b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\n" + b"Content-Length: 9\r\n\r\n{" * (number % 2))
    with ThreadPoolExecutor(4) as pool, httpx.Client(base_url=url, timeout=20) as client:
        since_s = time.monotonic()
        assert {each.status_code for each in pool.map(client.get, ["/api/status"] * 40)} == {200}
        assert time.monotonic() - since_s < 10
    web.term()
    assert web.wait(10) in (0, -signal.SIGTERM)
    assert "Traceback" not in web.log()
    for each in slow:
        each.close()


def test_other_host_requires_tokens(valkey, tmp_path):
    for words in (["--host", "0.0.0.0"], ["--host", "::"], ["--host", "10.0.0.7"]):
        run = affinity(valkey.url, "web", *words)
        assert run.returncode == 1
        assert "--token-file or $CELERY_AFFINITY_WEB_TOKENS must name their tokens" in run.stderr
    path = tmp_path / "tokens"
    path.write_text(f"read {TOKEN}\n")
    web = start(valkey.url, "--host", "0.0.0.0", "--token-file", str(path))
    url = url_of(web).replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(f"{url}/api/status").status_code == 401
    assert httpx.get(f"{url}/api/status", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_occupied_port_is_reported(valkey):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = affinity(valkey.url, "web", "--port", str(taken.getsockname()[1]))
    assert run.returncode == 1
    assert "cannot listen at 127.0.0.1:" in run.stderr


@pytest.mark.parametrize("words", [["--token-file", "/nowhere"]])
def test_missing_token_file_is_reported(valkey, words):
    run = affinity(valkey.url, "web", *words)
    assert run.returncode == 1
    assert "the token file cannot be read: FileNotFoundError: '/nowhere'" in run.stderr


def test_replies_are_sent_without_nagles_delay(app, monkeypatch):
    found = []

    def run(self, sockets):
        (listening,) = sockets
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            found.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(uvicorn.Server, "run", run)
    options = {"token_file": None, "read_only": False, "allow": ["*"], "names": [], "on_ready": lambda url: None}
    serve(app, host="127.0.0.1", port=0, **options)
    assert found == [1]
