"""The Celery app: each task reads a document and then waits for a simulated service."""

import os
import time
from pathlib import Path

from celery import Celery, signals

from examples.comparing import record
from examples.comparing.processes import die_with_parent
from examples.lab.plan import HEARTBEAT_S
from examples.pipeline.documents import UnreadableError, read_excel, read_pdf

FOLDER = Path(os.environ.get("LAB_FOLDER", "demo-output"))

app = Celery("lab", broker=os.environ.get("REDIS_URL", "redis://localhost"))
app.conf.update(
    broker_transport="celery_affinity:Transport",
    affinity_heartbeat_interval=HEARTBEAT_S,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"global_keyprefix": os.environ.get("LAB_KEYPREFIX", "")},
)


def describe(name, args, kwargs):
    """Return a job's type and its document, for the report."""
    return name.partition(".")[0], Path(args[0]).name


record.enable(FOLDER, describe)
signals.worker_process_init.connect(lambda **_: die_with_parent(), weak=False)


@app.task(name="pdf.extract", affinity="pdf", throws=(UnreadableError,))
def extract_pdf(path, answer_s):
    started_s = time.monotonic()
    read_pdf(Path(path))
    _wait_for_service(started_s + answer_s)


@app.task(name="excel.read", affinity="excel", throws=(UnreadableError,))
def extract_excel(path, answer_s):
    started_s = time.monotonic()
    read_excel(Path(path))
    _wait_for_service(started_s + answer_s)


def _wait_for_service(until_s):
    """Simulate a request to a service, such as a translation, whose response arrives at *until_s*.

    So a task takes a fixed time, which is longer than the reading. Otherwise, on a computer with two cores, reading
    five documents in parallel would make each of them slower, and no trace can show that.
    """
    time.sleep(max(0.0, until_s - time.monotonic()))
