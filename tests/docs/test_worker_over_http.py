"""What the page on workers over HTTP says is run: each request by curl, the code in Node, and the calls in Python."""

import json
import os
import re
import shutil
import sys

import pytest

from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.curl import run
from ..support.pages import blocks
from ..support.processes import ROOT, Process, start_worker, wait_until

PAGE = "docs/how-to/workers-in-other-languages.md"

#: Requests that are refused: a claim that has ended, and a worker that has left.
LATE_START = (
    "$ curl localhost:5556/api/jobs/$JOB/start -H 'Worker-Secret: $SECRET' -H 'Content-Type: application/json' "
    """-d '{"fence": $FENCE}'    # 409"""
)
LATE_POLL = "$ curl 'localhost:5556/api/workers/$WORKER/jobs' -H 'Worker-Secret: $SECRET'    # 404"


@pytest.fixture
def shop(valkey, redis_client, tmp_path):
    """Return a function that starts the web process of the page's app, and returns its URL and its environment."""

    def shop():
        urls = f"\napp.conf.update(broker_url={valkey.url!r}, result_backend={valkey.url!r})\n"
        (tmp_path / "shop.py").write_text(blocks(PAGE)["shop.py"] + urls)
        env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "PYTHONUNBUFFERED": "1"}
        web = Process("web", [sys.executable, "-m", "celery", "-A", "shop", "affinity", "web", "--port", "0"], env)
        return wait_until(lambda: re.search(r"http://\S+", web.log()), 60, f"it serves: {web.log()}").group(), env

    return shop


def call(expression, env):
    """Run an expression with the page's app in a process of its own; return a function that returns what it prints."""
    code = f"from shop import *\nprint({expression})"
    process = Process("call", [sys.executable, "-c", code], env)

    def printed():
        assert process.wait(60) == 0, process.log()
        return process.log().splitlines()[-1]

    return printed


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_each_request_of_a_worker_by_curl(shop):
    url, env = shop()
    page = blocks(PAGE)
    result = call('render.delay("index.html").get(timeout=40)', env)
    joined = json.loads(run(page["join"], url))
    names = {"WORKER": joined["id"], "SECRET": joined["secret"]}
    for _ in range(2):
        (job,) = json.loads(run(page["poll"], url, **names))["jobs"]
        assert (job["task"], job["args"]) == ("shop.render", ["index.html"])
        names |= {"JOB": job["id"], "FENCE": str(job["fence"])}
        if result is not None:
            run(page["run"] + page["end"] + LATE_START, url, **names)
            assert result() == "{'pages': 3}"
            result = None
            call('render.delay("index.html")', env)
    run(page["fail"] + page["leave"] + LATE_POLL, url, **names)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_worker_in_node_of_the_page(shop, valkey, redis_client, tmp_path):
    url, env = shop()
    page = blocks(PAGE)
    (tmp_path / "render.mjs").write_text(page["render.mjs"])
    shutil.copy(ROOT / "examples" / "http_worker" / "worker.mjs", tmp_path)
    Process("node", ["node", str(tmp_path / "render.mjs")], {"URL": url, "TOKEN": ""})
    start_worker("shop", valkey.url, ["sum"], name="celery", pool="threads", env=env)
    report = Report(Reader(redis_client, Keys()))
    wait_until(lambda: len(report.status().workers) == 2, 60, "both workers join")
    (tmp_path / "call.py").write_text(page["call.py"])
    caller = Process("call", [sys.executable, str(tmp_path / "call.py")], env)
    assert caller.wait(60) == 0, caller.log()
    assert caller.log().splitlines()[-1] == str(len("index.html") + 2 * len("a.html"))
