"""The page on a customer that floods a fleet is followed, with a real worker, by the commands that it shows."""

import os
import subprocess
import sys

import pytest

from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.pages import blocks
from ..support.processes import ROOT, WorkerProcess, wait_until

PAGE = "docs/how-to/cancel-move-replay.md"

SHOP = """
import os, time
from celery import Celery
from celery_affinity import Affinity, Exclusive
app = Celery("shop", broker={url!r}, backend={url!r})
app.conf.broker_transport = "celery_affinity:Transport"

@app.task(name="shop.report", affinity="pdf")
def report(customer, page):
    while not os.path.exists({gate!r}):
        time.sleep(0.02)

@app.task(name="shop.index", affinity=Affinity("pdf", exclusive=Exclusive("customer:{{customer}}", limit=4)))
def index(customer, page):
    report.run(customer, page)
"""


class Shop:
    def __init__(self, folder, url, redis_client):
        self.folder, self.reader = folder, Reader(redis_client, Keys())
        self.gate = folder / "gate"
        (folder / "shop.py").write_text(SHOP.format(url=url, gate=str(self.gate)))
        celery = folder / "bin" / "celery"
        celery.parent.mkdir()
        celery.write_text(f'#!/bin/sh\nexec {sys.executable} -m celery "$@"\n')
        celery.chmod(0o755)
        self.env = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PATH": f"{celery.parent}:{os.environ['PATH']}"}

    def call(self, code):
        subprocess.run(
            [sys.executable, "-c", f"from shop import *\n{code}"],
            env={**os.environ, **self.env},
            cwd=self.folder,
            check=True,
        )

    def run(self, block, lines=slice(None)):
        """Run the commands of a block in a shell, or some *lines* of it, and answer their questions."""
        script = "\n".join(line.removeprefix("$ ") for line in blocks(PAGE)[block].splitlines()[lines])
        done = subprocess.run(
            ["sh", "-ec", script],
            env={**os.environ, **self.env},
            cwd=self.folder,
            input="y\n",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def worker(self):
        command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-Q", "pdf", "-P", "threads", "-c", "2"]
        worker = WorkerProcess("pdf1", [*command, "-l", "INFO", "-n", "pdf1@host"], self.env, self.folder)
        worker.wait_ready(30)
        return worker

    def pending(self):
        return {each.type: each.pending for each in Report(self.reader).status().types if each.pending}


@pytest.fixture
def shop(valkey, redis_client, tmp_path):
    return Shop(tmp_path, valkey.url, redis_client)


def test_without_a_key(shop):
    worker = shop.worker()
    shop.call("for page in range(30): report.delay('acme', page=page)")
    shop.call("for page in range(5): report.delay(customer='globex', page=page)")
    wait_until(lambda: shop.pending() == {"pdf": 33}, 20, "two run")
    assert shop.run("recent").count("shop.report") == 33
    found = [line.split(maxsplit=1) for line in shop.run("who").splitlines()]
    shown = [line.split(maxsplit=1)[1] for line in blocks(PAGE)["counted"].splitlines()]
    assert found == [["28", shown[0]], ["5", shown[1]]]
    assert "28 jobs found; nothing was done" in shop.run("count")

    said = shop.run("aside")
    assert "no live worker serves type 'parked'" in said
    assert shop.pending() == {"pdf": 5, "parked": 28}
    shop.gate.touch()
    wait_until(lambda: shop.pending() == {"parked": 28}, 20, "the others go on")
    shop.gate.unlink()
    shop.run("back")
    wait_until(lambda: shop.pending() == {"pdf": 26}, 20, "two of them run")
    assert "26 done" in shop.run("cancel-customer")
    wait_until(lambda: shop.pending() == {}, 10, "nothing waits")
    shop.gate.touch()
    wait_until(lambda: worker.log().count("succeeded") == 9, 20, "those that ran go on")


def test_with_a_key(shop):
    shop.worker()
    shop.call("for page in range(6): index.delay('acme', page=page)")
    wait_until(lambda: shop.pending() == {"pdf": 4}, 20, "two run")
    assert "customer:acme" in shop.run("pause", slice(0, 1))
    assert "flood, we ask them; until" in shop.run("pause", slice(1, 2))
    shop.gate.touch()
    wait_until(lambda: not Report(shop.reader).status().types[0].busy, 20, "those that ran have ended")
    assert shop.pending() == {"pdf": 4}, "no other has started"
    assert "resumed: key 'customer:acme'" in shop.run("pause", slice(2, 3))
    assert "no limit is set; the tasks' own limits apply" in shop.run("limit")
    wait_until(lambda: shop.pending() == {}, 20, "all have run")
