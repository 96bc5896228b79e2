"""Real workers write each log line of the page on tasks that ran twice or were lost, for the documented reason."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from celery_affinity.embedded import EmbeddedServer

from ..support.pages import blocks, commands, rows
from ..support.processes import ROOT, WorkerProcess, wait_until

PAGE = "docs/how-to/ran-twice-or-lost.md"
TEXT = (ROOT / PAGE).read_text()

SHOP = """
import os, time
from celery import Celery
app = Celery("shop", broker={url!r}, backend={url!r})
app.conf.broker_transport = "celery_affinity:Transport"
app.conf.affinity_worker_timeout = 2
app.conf.affinity_heartbeat_interval = 0.5
{keep}

@app.task(name="shop.render", affinity="pdf", acks_late=True)
def render(gate):
    with open(gate, "a") as runs:
        runs.write("x")
    while not os.path.exists(gate + ".open"):
        time.sleep(0.02)

@app.task(name="shop.again", affinity="pdf", bind=True)
def again(self):
    if not self.request.retries:
        raise self.retry(countdown=0)

@app.task(name="shop.reject", affinity="pdf", acks_late=True, reject_on_worker_lost=True, bind=True)
def reject(self, gate):
    if not os.path.exists(gate):
        open(gate, "w").close()
        os._exit(1)
"""


class Shop:
    def __init__(self, folder, url):
        self.folder = folder
        (folder / "shop.py").write_text(SHOP.format(url=url, keep=blocks(PAGE)["keep"]))
        self.env = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}

    def worker(self, name, pool="prefork"):
        command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-Q", "pdf", "-P", pool, "-c", "1"]
        worker = WorkerProcess(name, [*command, "-l", "INFO", "-n", f"{name}@host"], self.env, self.folder)
        worker.wait_ready(30)
        return worker

    def run(self, *words):
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, **self.env},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def call(self, task, *args, task_id="late-1"):
        self.run("-c", f"import shop; shop.{task}.apply_async({args!r}, task_id={task_id!r})")


class Gate:
    """What holds a task until it is opened, and counts its runs."""

    def __init__(self, path):
        self.path = Path(path)

    def runs(self):
        return len(self.path.read_text()) if self.path.exists() else 0

    def open(self):
        Path(f"{self.path}.open").touch()


@pytest.fixture
def shop(valkey, redis_client, tmp_path):
    return Shop(tmp_path, valkey.url)


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path / "gate")


def fragments(row):
    """Return what a row of the table quotes of the log: the parts between "..." of each quotation."""
    (cell,) = [cell for cell, *_ in rows(TEXT.partition("## Read the logs")[2]) if row in cell]
    return [part.strip() for quoted in re.findall("`([^`]+)`", cell) for part in quoted.split("...") if part.strip()]


def is_written(fragment, log):
    """Return whether a log has a line of the page, whatever the numbers are."""
    pattern = re.sub(r"\d+", r"\\d+", re.escape(fragment)).replace("jobs\\ ", "jobs?\\ ")
    return re.search(pattern, log) is not None


def assert_written(row, worker):
    """Lines of several threads come in any order: wait for each."""

    def log():
        return worker.log().replace("shop.again", "shop.render")

    wait_until(lambda: all(is_written(each, log()) for each in fragments(row)), 10, f"the log has {fragments(row)}")


def test_a_killed_worker(shop, gate):
    killed = shop.worker("pdf1")
    shop.call("render", str(gate.path))
    wait_until(lambda: gate.runs() == 1, 20, "it runs")
    shop.worker("pdf2")
    killed.kill()
    wait_until(lambda: "jobs reclaimed" in killed.log(), 10, "its guard reports it")
    assert_written("(pid 4711) died; jobs reclaimed", killed)
    (shown,) = blocks(PAGE)["guard"].splitlines()
    pattern = re.sub(r"\d+", r"\\d+", re.escape(shown))
    assert re.search(f"^{pattern}$", killed.log(), re.M), killed.log()
    wait_until(lambda: gate.runs() == 2, 20, "it runs again")
    gate.open()
    ask, shows = commands(blocks(PAGE)["ask"])[0], blocks(PAGE)["came-back"].splitlines()
    wait_until(lambda: "done" in shop.run("-m", *ask), 20, "it has ended")
    said = shop.run("-m", *ask)
    for line in shows:
        begins = re.split(" since | at ", line)[0]
        assert begins in said, said
    assert re.search(r"received\n", killed.log())


def test_a_suspended_worker(shop, gate):
    suspended = shop.worker("pdf1")
    shop.call("render", str(gate.path))
    wait_until(lambda: gate.runs() == 1, 20, "it runs")
    suspended.signal(signal.SIGSTOP)
    other = shop.worker("pdf2")
    wait_until(lambda: gate.runs() == 2, 20, "it runs again")
    assert_written("silent worker(s)", other)
    suspended.signal(signal.SIGCONT)
    suspended.wait_for("no longer this worker's", 10)
    assert_written("The broker had declared", suspended)
    suspended.wait_for("is stopped: another worker already runs it", 10)
    assert "`is stopped: another worker already runs it`" in TEXT


def test_a_cold_shutdown(shop, gate):
    worker = shop.worker("pdf1")
    shop.call("render", str(gate.path))
    wait_until(lambda: gate.runs() == 1, 20, "it runs")
    worker.signal(signal.SIGQUIT)
    worker.wait_for("left the fleet", 20)
    assert_written("Cold shutdown", worker)
    assert "came back" in shop.run("-m", *commands(blocks(PAGE)["ask"])[0])


def test_a_retry_and_a_lost_pool_process(shop, tmp_path):
    worker = shop.worker("pdf1")
    shop.call("again")
    worker.wait_for("retry: Retry in", 20)
    assert_written("retry: Retry", worker)
    shop.call("reject", str(tmp_path / "ran"), task_id="rejected")
    worker.wait_for("WorkerLostError", 20)
    worker.wait_for("Task shop.reject[rejected] succeeded", 20)
    assert_written("WorkerLostError", worker)


def test_a_server_that_forgot(tmp_path, gate):
    with EmbeddedServer() as server:
        shop = Shop(tmp_path, server.url)
        worker = shop.worker("pdf1", pool="threads")
        shop.call("render", str(gate.path))
        wait_until(lambda: gate.runs() == 1, 20, "it runs")
        with redis.Redis.from_url(server.url) as client:
            client.save()
        gate.open()
        wait_until(lambda: "done" in shop.run("-m", *commands(blocks(PAGE)["ask"])[0]), 20, "the server knows its end")
        server.kill()
        worker.wait_for("The broker does not answer", 10)
        server.start()
        wait_until(lambda: gate.runs() == 2, 40, "it runs again")
        assert worker.log().count("Task shop.render[late-1] received") == 2
        assert_written("`joined again`", worker)


def test_every_line_of_the_table_has_a_test():
    tested = re.findall(r'assert_written\("(.+?)"', Path(__file__).read_text())
    cells = [cell for cell, *_ in rows(TEXT.partition("## Read the logs")[2])]
    assert len(cells) == 10
    untested = [cell for cell in cells if not any(each in cell for each in tested)]
    assert [re.findall("`([^`]+)`", each)[0] for each in untested] == [
        "... died, but its pool processes did not end ...",
        "... died, and the broker does not answer ...",
        "is not started: another worker may already run it",
    ], "their lines are compared with the reference below"
    reference = (ROOT / "docs/reference/log.md").read_text()
    for cell in untested:
        (quoted,) = re.findall("`([^`]+)`", cell)
        assert quoted.strip(". ") in reference


def test_a_worker_that_died_is_reported_in_its_log_file_as_well(shop, gate, tmp_path):
    assert "and in the file of `--logfile`" in TEXT
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-Q", "pdf", "-P", "solo", "-l", "INFO"]
    file = tmp_path / "worker.log"
    worker = WorkerProcess("filed", [*command, "-f", str(file)], shop.env, tmp_path)
    wait_until(lambda: file.exists() and " ready." in file.read_text(), 30, "it is ready")
    worker.kill()
    wait_until(lambda: "died; jobs reclaimed" in worker.log(), 10, "its guard reports it")
    wait_until(lambda: "died; jobs reclaimed" in file.read_text(), 5, "and in the file")
