"""The examples for web frameworks: a request over HTTP, a task on a real worker, and the answer on the way back."""

import json
import re
import sys
from types import SimpleNamespace
from urllib.request import Request, urlopen

import pytest

from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.processes import Process, start_worker, wait_until

ANY_PORT = "127.0.0.1:0"
EXAMPLES = {
    "django_app": SimpleNamespace(
        celery="examples.django_app",
        web=["-m", "examples.django_app", "runserver", "--noreload", ANY_PORT],
        invoice="invoice 7 as a PDF",
    ),
    "flask_app": SimpleNamespace(
        celery="examples.flask_app:celery",
        web=["-m", "flask", "--app", "examples.flask_app", "run", "--port", "0"],
        invoice="invoice 7 on A4",
    ),
    "fastapi_app": SimpleNamespace(
        celery="examples.fastapi_app:celery",
        web=["-m", "uvicorn", "examples.fastapi_app:app", "--port", "0"],
        invoice="invoice 7 as a PDF",
    ),
}


@pytest.fixture(params=EXAMPLES)
def site(request, valkey, redis_client):
    """An example, with a worker for PDFs, and another worker that no job of the example may reach."""
    example = EXAMPLES[request.param]
    env = {"REDIS_URL": valkey.url, "PYTHONUNBUFFERED": "1"}
    start_worker(example.celery, valkey.url, ["pdf"], name="pdf", env=env)
    start_worker(example.celery, valkey.url, ["excel"], name="excel", pool="solo", env=env)
    web = Process(request.param, [sys.executable, *example.web], env)
    url = wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+", web.log()), 60, f"it serves: {web.log()}").group()
    report = Report(Reader(redis_client, Keys()))
    wait_until(lambda: len(report.status().workers) == 2, 60, "the workers join")

    def call(path, method="GET"):
        with urlopen(Request(url + path, method=method), timeout=40) as reply:
            return reply.read().decode()

    return SimpleNamespace(name=request.param, call=call, invoice=example.invoice, redis=redis_client, report=report)


def test_a_user_who_waits_passes_the_nightly_batch(site):
    batch = json.loads(site.call("/nightly", "POST"))["id"]

    def progress():
        return json.loads(site.call(f"/nightly/{batch}"))

    assert site.call("/invoices/7") == site.invoice
    meanwhile = progress()
    assert meanwhile["of"] == 12
    assert meanwhile["done"] < 10, "the user passed most of the batch"
    wait_until(lambda: progress()["done"] == 12, 30, "the batch is done")
    (pdf,) = [each for each in site.report.status().types if each.type == "pdf"]
    assert (pdf.pending, pdf.slots) == (0, 1)
    if site.name == "django_app":
        assert site.redis.hget(Keys().key("settings"), "worker_timeout_us") == b"60000000"
