"""What the pages on differences and on Kubernetes say of processes that end: run with real workers."""

import os
import signal
from types import SimpleNamespace

import celery
import pytest
import yaml

from ..support.pages import blocks
from ..support.processes import ROOT, start_worker, wait_until

APP = """
import os, time
from pathlib import Path
from celery import Celery

here, url = Path(os.environ["HERE"]), os.environ["BROKER_URL"]
app = Celery("ends", broker=url, backend=url)
app.conf.broker_transport = "celery_affinity:Transport"
app.conf.worker_soft_shutdown_timeout = float(os.environ.get("SOFT", "0"))
app.conf.task_retry_on_worker_lost = "RETRY" in os.environ


def run(self, once):
    redelivered = self.request.delivery_info["redelivered"]
    with (here / "runs").open("a") as file:
        print(os.getpid(), self.request.retries, redelivered, file=file, flush=True)
    while once and not (self.request.retries or redelivered):
        time.sleep(0.05)
    return [self.request.retries, redelivered]


@app.task(bind=True, affinity="pdf", acks_late=True, default_retry_delay=0)
def late(self, once=True):
    return run(self, once)


@app.task(bind=True, affinity="pdf", retry_on_worker_lost=True, default_retry_delay=0)
def retried(self, once=True):
    return run(self, once)


@app.task(bind=True, affinity="pdf", acks_late=True, retry_on_worker_lost=True, default_retry_delay=0)
def retried_late(self, once=True):
    return run(self, once)
"""


@pytest.fixture
def ends(valkey, redis_client, tmp_path, monkeypatch):
    (tmp_path / "ends.py").write_text(APP)
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "HERE": str(tmp_path)}

    def runs():
        path = tmp_path / "runs"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def start(name, **more):
        worker = start_worker("ends", valkey.url, ["pdf"], name=name, env={**env, **more})
        worker.wait_ready(60)
        return worker

    names = {"__name__": "ends"}
    for name in ("HERE", "BROKER_URL"):
        monkeypatch.setenv(name, {**env, "BROKER_URL": valkey.url}[name])
    exec(APP, names)
    yield SimpleNamespace(runs=runs, start=start, **{name: names[name] for name in ("late", "retried", "retried_late")})
    names["app"].close()


def test_a_job_of_a_killed_worker_is_marked_as_redelivered(ends):
    worker = ends.start("first")
    result = ends.late.delay()
    wait_until(ends.runs, 30, "it runs")
    worker.kill()
    ends.start("second")
    assert result.get(timeout=60) == [0, True]
    assert [run[2] for run in ends.runs()] == ["False", "True"]


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="the setting is new in Celery 5.7")
@pytest.mark.parametrize(("name", "setting"), [("retried", {}), ("retried_late", {}), ("late", {"RETRY": "1"})])
def test_a_lost_pool_process_is_a_retry_for_tasks_and_apps_that_say_so(ends, name, setting):
    ends.start("only", **setting)
    result = getattr(ends, name).delay()
    wait_until(ends.runs, 30, "it runs")
    os.kill(int(ends.runs()[0][0]), signal.SIGKILL)
    assert result.get(timeout=60) == [1, False]
    assert len(ends.runs()) == 2


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="the setting is new in Celery 5.7")
def test_a_whole_worker_that_is_killed_retries_nothing(ends, redis_client):
    worker = ends.start("first")
    result = ends.retried.delay()
    wait_until(ends.runs, 30, "it runs")
    (job,) = redis_client.scan_iter("*}:job:*")
    wait_until(lambda: redis_client.hget(job, "acked") == b"1", 30, "it is acked")
    worker.kill()
    ends.start("second")
    with pytest.raises(Exception, match="worker") as caught:
        result.get(timeout=60)
    assert type(caught.value).__name__ == "WorkerLostError"
    assert len(ends.runs()) == 1


def test_a_soft_shutdown_gives_a_long_task_back_before_the_container_is_killed(ends):
    page = yaml.safe_load(blocks("docs/how-to/deploy.md")["soft-shutdown"])
    ((variable,),) = [each["env"] for each in page["containers"]]
    worker = ends.start("first", SOFT="1", **{variable["name"]: variable["value"]})
    result, waiting = ends.late.delay(), ends.late.delay(once=False)
    wait_until(ends.runs, 30, "it runs")
    worker.term()
    wait_until(lambda: not worker.is_running, 30, "it has ended, though its task had not")
    assert "1 job returned to the queue" in worker.log()
    assert len(ends.runs()) == 1, "it began nothing after the signal"
    ends.start("second")
    assert result.get(timeout=60) == [0, True]
    assert waiting.get(timeout=60) == [0, False]
