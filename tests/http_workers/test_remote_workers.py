"""Workers in shell, in Node and Celery workers in one fleet with two web processes: killed, cut off and running."""

import json
import re
import shutil
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from celery import chord
from celery.exceptions import TaskRevokedError

from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.processes import ROOT, Process, start_worker, wait_until
from ..support.remote_workers import RemoteWorker

EXAMPLES = ROOT / "examples" / "http_worker"

SHOP = """
import os
from celery import Celery

app = Celery("shop", broker=os.environ["SHOP_URL"], backend=os.environ["SHOP_URL"])
app.conf.update(
    broker_transport="celery_affinity:Transport",
    task_acks_late=True,
    affinity_worker_timeout=2,
    affinity_heartbeat_interval=0.5,
    accept_content=["json", "yaml"],
)


@app.task(affinity="page")
def render(path):
    raise NotImplementedError("a worker over HTTP runs it")


@app.task(affinity="sum")
def add(numbers):
    return sum(numbers)


@app.task(affinity="sum")
def square(number):
    return number * number
"""

NODE = """
import {{ work }} from {module!r};
const tasks = {{
    "shop.render": async ([path]) => {{
        if (path === "bad") throw new RangeError("no such page");
        if (path === "nothing") throw null;
        if (path === "no JSON") return 1n;
        return path.length;
    }},
}};
await work({{ url: {url!r}, token: "", types: ["page"], slots: 2, tasks }});
"""

#: A program that never finishes its first job, and returns the length of the argument for every other job.
PROGRAM = """
import json, os, sys, time
job = json.load(sys.stdin)
if not os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(600)
print(len(job["args"][0]))
"""


class Shop:
    """The app of the fleet, its broker, and its two web processes."""

    def __init__(self, server, redis_client, folder):
        (folder / "shop.py").write_text(SHOP)
        self.folder = folder
        self.env = {"PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1", "SHOP_URL": server.url}
        self.report = Report(Reader(redis_client, Keys()))
        self.webs = [Process("web", self.celery("affinity", "web", "--port", "0"), self.env) for _ in range(2)]
        self.urls = [self.url_of(each) for each in self.webs]

    def celery(self, *words):
        return [sys.executable, "-m", "celery", "-A", "shop", *words]

    def url_of(self, web):
        return wait_until(lambda: re.search(r"http://\S+", web.log()), 60, f"it serves: {web.log()}").group()

    def joins(self, name):
        names = lambda: [each.name for each in self.report.status().workers if each.name.startswith(name)]  # noqa: E731
        return wait_until(names, 60, f"{name} joins")

    def shell(self, *words):
        env = {"URL": self.urls[0], "TOKEN": ""}
        return Process("shell", [str(EXAMPLES / "worker.sh"), "page", *words], env)


@pytest.fixture
def shop(valkey, redis_client, tmp_path, monkeypatch):
    made = Shop(valkey, redis_client, tmp_path)
    monkeypatch.setenv("SHOP_URL", valkey.url)
    monkeypatch.syspath_prepend(tmp_path)
    import shop

    made.app = shop.app
    yield made
    shop.app.close()
    del sys.modules["shop"]


pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_killed_shell_workers_job_reruns_in_a_chord(shop):
    tasks = shop.app.tasks
    (shop.folder / "program.py").write_text(PROGRAM)
    begun = shop.folder / "begun"
    words = [sys.executable, str(shop.folder / "program.py"), str(begun)]
    first = shop.shell(*words)
    shop.joins("shell-")
    header = [tasks["shop.render"].s("index.html"), tasks["shop.square"].s(4), tasks["shop.square"].s(5)]
    total = chord(header)(tasks["shop.add"].s())
    wait_until(lambda: begun.exists() and begun.read_text(), 20, "the job runs")
    start_worker("shop", shop.env["SHOP_URL"], ["sum"], name="celery", pool="threads", env=shop.env)
    first.signal(signal.SIGKILL)
    second = shop.shell(*words)
    assert total.get(timeout=40) == 10 + 16 + 25
    failed = tasks["shop.render"].delay(7)
    with pytest.raises(Exception, match="1") as raised:
        failed.get(timeout=20)
    assert type(raised.value).__name__ == "ExitStatus"
    begun.unlink()
    revoked = tasks["shop.render"].delay("stays")
    wait_until(lambda: begun.exists() and begun.read_text(), 20, "the job runs")
    revoked.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=20)
    second.term()
    second.wait(20)
    wait_until(lambda: not [each for each in shop.report.status().workers if "shell" in each.name], 10, "it left")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_fleet_survives_killed_node_worker_and_web_process(shop):
    render = shop.app.tasks["shop.render"]
    script = shop.folder / "worker.mjs"
    script.write_text(NODE.format(module=str(EXAMPLES / "worker.mjs"), url=shop.urls[0]))
    node = Process("node", ["node", str(script)], {})
    shop.joins("node-")
    assert [each.get(timeout=20) for each in [render.delay("x" * number) for number in range(6)]] == list(range(6))
    with pytest.raises(Exception, match="no such page") as raised:
        render.delay("bad").get(timeout=20)
    assert type(raised.value).__name__ == "RangeError"
    for path, words in (("nothing", "null"), ("no JSON", "BigInt")):
        with pytest.raises(Exception, match=words):
            render.delay(path).get(timeout=20)
    node.signal(signal.SIGKILL)
    # Both web processes have the worker. A worker whose reply was lost repeats its report to the other one.
    first, second = (httpx.Client(base_url=each, timeout=30) for each in shop.urls)
    with first, second:
        worker = RemoteWorker(first.request, "page", name="python")
        result = render.delay("late")
        job = worker.job(wait=20)
        worker.ask = second.request
        assert worker.start(job).status_code == 200
        shop.webs[0].signal(signal.SIGKILL)
        ended = worker.end(job, result=job["args"])
        assert worker.end(job, result=job["args"]).json() == ended.json()
        assert result.get(timeout=20) == ["late"]
        assert worker.beat().json() == {"stop": [], "gone": []}
        assert json.loads(worker.leave().text)["returned"] == 0


def test_yaml_jobs_run_only_on_celery_workers(shop):
    square = shop.app.tasks["shop.square"]
    ended = threading.Event()
    with httpx.Client(base_url=shop.urls[0], timeout=30) as http, ThreadPoolExecutor(1) as pool:
        start_worker("shop", shop.env["SHOP_URL"], ["sum"], name="celery", pool="solo", env=shop.env)
        shop.joins("celery")
        worker = RemoteWorker(http.request, "sum", name="python")  # polls from now on: silence would end its claims

        def work():
            """End each job of the HTTP worker with -1, which is not a square."""
            while not ended.is_set():
                for job in worker.jobs(wait=1):
                    assert worker.start(job).status_code == 200
                    assert worker.end(job, result=-1).status_code == 200

        working = pool.submit(work)
        try:
            kinds = ["yaml", "json", "json"] * 10
            results = [square.apply_async((nth,), serializer=each) for nth, each in enumerate(kinds)]
            values = [each.get(timeout=40) for each in results]
        finally:
            ended.set()
        working.result(timeout=40)
    for nth, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        assert value == nth * nth or (kind == "json" and value == -1), nth


ANSWERS = {
    "POST /api/workers": (201, b'{"id": "a", "secret": "b", "heartbeat_s": 60}'),
    "GET /api/workers/a/jobs": (204, b""),
}


class Proxy(BaseHTTPRequestHandler):
    """Answers a route first like a proxy without a web process and then like a web process without jobs."""

    def do_GET(self):
        route = f"{self.command} {self.path.partition('?')[0]}"
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        is_new = route not in self.server.asked
        self.server.asked.append(route)
        status, body = (404, b"<html>no backend</html>") if is_new else ANSWERS[route]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *args):
        pass


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_node_worker_retries_after_a_proxys_error_page(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        proxy.asked = []
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        script = tmp_path / "worker.mjs"
        url = f"http://127.0.0.1:{proxy.server_port}"
        script.write_text(NODE.format(module=str(EXAMPLES / "worker.mjs"), url=url))
        node = Process("node", ["node", str(script)], {})
        wait_until(lambda: proxy.asked.count("GET /api/workers/a/jobs") > 2, 20, "it polls again")
        node.end()
        assert proxy.asked.count("POST /api/workers") == 2
        proxy.shutdown()
