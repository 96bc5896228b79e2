"""Spawned instead of forked pool processes run tasks in the same way."""

import os
import signal
from types import SimpleNamespace

import celery
import pytest

from ..support.processes import ROOT, start_worker, wait_until

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(celery.VERSION < (5, 7), reason="the setting is new in Celery 5.7"),
]

APP = """
import os, time
from pathlib import Path
from celery import Celery
from celery_affinity import Affinity, Merge

here, url = Path(os.environ["HERE"]), os.environ["BROKER_URL"]
app = Celery("spawned", broker=url, backend=url)
app.conf.update(broker_transport="celery_affinity:Transport", worker_pool_start_method=os.environ["METHOD"])


def union(a, b):
    return a.replace(names=[*a.kwargs["names"], *b.kwargs["names"]])


@app.task(affinity=Affinity("pdf", merge=Merge("all", fold=union)))
def together(names):
    return names


@app.task(bind=True, affinity=Affinity("pdf", exclusive="{key}"), acks_late=True)
def seen(self, key):
    return [os.getpid(), os.getppid(), self.request.affinity.fence, self.request.affinity.key]


@app.task(bind=True, affinity="pdf", acks_late=True)
def once_killed(self):
    if self.request.delivery_info["redelivered"]:
        return "again"
    (here / "pid").write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)
"""


@pytest.fixture(params=["spawn", "fork"])
def fleet(request, valkey, redis_client, tmp_path, monkeypatch):
    (tmp_path / "spawned.py").write_text(APP)
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "HERE": str(tmp_path), "METHOD": request.param}
    for name, value in {"HERE": str(tmp_path), "METHOD": request.param, "BROKER_URL": valkey.url}.items():
        monkeypatch.setenv(name, value)
    names = {"__name__": "spawned"}
    exec(APP, names)

    def start(name):
        worker = start_worker("spawned", valkey.url, ["pdf"], name=name, env=env)
        worker.wait_ready(60)
        return worker

    yield SimpleNamespace(
        start=start, here=tmp_path, **{name: names[name] for name in ("together", "seen", "once_killed")}
    )
    names["app"].close()


def test_calls_merge_and_each_caller_gets_the_result(fleet):
    results = [fleet.together.delay([name]) for name in "abc"]
    fleet.start("one")
    assert [each.get(timeout=30) for each in results] == [["a", "b", "c"]] * 3


def test_task_sees_its_claim(fleet):
    worker = fleet.start("one")
    pid, parent, fence, key = fleet.seen.delay("hamburg").get(timeout=30)
    assert pid != worker.pid
    assert parent == worker.pid
    assert fence > 0
    assert key == "hamburg"


def test_killed_worker_leaves_no_pool_process(fleet):
    worker = fleet.start("one")
    result = fleet.once_killed.delay()
    path = fleet.here / "pid"
    pid = int(wait_until(lambda: path.exists() and path.read_text(), 30, "it runs"))
    os.kill(worker.pid, signal.SIGKILL)

    def is_gone():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_gone, 10, "the pool process is gone")
    fleet.start("two")
    assert result.get(timeout=30) == "again"
