"""`celery affinity up`: a server, the page and a worker in one command, which ends without leaving anything."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys

import httpx
import psutil
import pytest

from ..support.processes import Process, wait_until

APP = """
from celery import Celery

app = Celery("shop")
app.conf.broker_transport = "celery_affinity:Transport"

@app.task(affinity="pdf")
def render(page):
    return f"{page} rendered"
"""

#: A task that has begun, and ends when a file is there.
SLOW = """

@app.task(affinity="pdf", acks_late={late})
def slow(name):
    import pathlib, time
    pathlib.Path(name + " began").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    pathlib.Path(name + " ended").touch()
    return name
"""


def start(directory, *words):
    """Start the command, which keeps its data. Return the process and the URL of its jobs."""
    words = ["up", "--port", "0", "--dir", str(directory / "data"), *words]
    command = [sys.executable, "-m", "celery", "-A", "shop", "affinity", *words]
    process = Process("up", command, {"PYTHONUNBUFFERED": "1"}, cwd=directory)
    process.wait_for("not for production", 60)
    return process, re.search(r"curl (\S+)", process.log())[1]


def test_the_job_of_the_first_curl_runs_and_nothing_is_left(tmp_path):
    (tmp_path / "shop.py").write_text(APP)
    data = tmp_path / "data"
    words = ["up", "--port", "0", "--dir", str(data)]
    command = [sys.executable, "-m", "celery", "-A", "shop", "affinity", *words]
    process = Process("up", command, {"PYTHONUNBUFFERED": "1"}, cwd=tmp_path)
    process.wait_for("not for production", 60)
    curl = shlex.split(re.search(r"^  (curl .*)$", process.log(), re.M)[1])
    assert curl[0] == "curl"
    header, body = curl[curl.index("-H") + 1], curl[curl.index("-d") + 1]
    reply = httpx.post(curl[1], content=body, headers=dict([header.split(": ")]), timeout=30)
    assert reply.status_code == 201, reply.text
    job = reply.json()
    assert (job["task"], job["type"]) == ("shop.render", "pdf")
    found = httpx.get(f"{curl[1]}/{job['id']}?wait=30", timeout=60).json()
    assert found["state"] == "done", process.log()
    assert found["worker"] == f"up@{socket.gethostname()}"
    children = psutil.Process(process.pid).children(recursive=True)
    assert children, "the server, and the guard"
    process.signal(signal.SIGTERM)
    wait_until(lambda: not process.is_running, 30, f"it ends: {process.log()}")
    wait_until(lambda: not any(each.is_running() for each in children), 30, "nothing is left behind")
    assert list(data.glob("appendonlydir/*")), "the data are kept"
    assert "Traceback" not in process.log()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("number", "send"),
    [(signal.SIGINT, os.killpg), (signal.SIGINT, os.kill), (signal.SIGTERM, os.kill), (signal.SIGTERM, os.killpg)],
    ids=["Ctrl-C", "SIGINT", "SIGTERM", "SIGTERM of all"],
)
def test_a_signal_ends_it_when_the_running_task_has_ended_and_nothing_is_lost(tmp_path, number, send, late):
    (tmp_path / "shop.py").write_text(APP + SLOW.format(late=late))
    process, jobs = start(tmp_path, "--concurrency", "1")
    ids = [httpx.post(jobs, json={"task": "shop.slow", "args": [name]}).json()["id"] for name in ("first", "next")]
    wait_until((tmp_path / "first began").exists, 30, "it runs")
    children = psutil.Process(process.pid).children(recursive=True)
    send(process.pid, number)
    process.wait_for("Warm shutdown", 30)
    (tmp_path / "go").touch()
    assert process.wait(30) == 0, process.log()
    assert (tmp_path / "first ended").exists(), process.log()
    assert not (tmp_path / "next began").exists(), "the worker took no new job"
    wait_until(lambda: not any(each.is_running() for each in children), 30, "nothing is left behind")
    assert "Traceback" not in process.log()
    _, jobs = start(tmp_path)
    for each in ids:
        assert httpx.get(f"{jobs}/{each}?wait=30", timeout=60).json()["state"] == "done"
    assert (tmp_path / "next ended").exists()


def test_an_app_without_the_transport_is_refused(tmp_path):
    (tmp_path / "stock.py").write_text("from celery import Celery\napp = Celery('stock')\n")
    words = ["-m", "celery", "-A", "stock", "affinity", "up", "--port", "0"]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert 'broker_transport must be "celery_affinity:Transport"' in done.stderr
