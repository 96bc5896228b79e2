"""The Celery app. Each side has its own settings. The tasks read documents, as in `examples.pipeline`."""

import os
from pathlib import Path

from celery import Celery, signals

from celery_affinity import Affinity, Tenant
from examples.comparing import record
from examples.comparing.processes import die_with_parent
from examples.pipeline.documents import UnreadableError, read_excel, read_pdf

#: Name of the side -> title.
SIDES = {
    "stock": "stock Celery",
    "age": "turns by age",
    "share": "turns by share",
    "quotas": "share, max 2, min 1 for small",
}

#: FLOOD publishes all its calls together, the other two publish theirs one by one.
FLOOD, ACME, SMALL = CUSTOMERS = ("flood", "acme", "small")

SIDE = os.environ.get("CUSTOMERS_SIDE", "share")
FOLDER = Path(os.environ.get("CUSTOMERS_FOLDER", "demo-output"))

app = Celery("customers", broker=os.environ.get("REDIS_URL", "redis://localhost"))
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"global_keyprefix": os.environ.get("CUSTOMERS_KEYPREFIX", "")},
)
if SIDE == "stock":
    app.conf.task_routes = {"pdf.*": {"queue": "pdf"}, "excel.*": {"queue": "excel"}}
else:
    app.conf.broker_transport = "celery_affinity:Transport"
if SIDE in ("share", "quotas"):
    app.conf.affinity_tenant_turns = "share"
if SIDE == "quotas":
    app.conf.affinity_tenants = {SMALL: Tenant(min=1), "*": Tenant(max=2)}


def describe(name, args, kwargs):
    """Return a job's type and its customer, for the report."""
    return name.partition(".")[0], args[1]


record.enable(FOLDER, describe)
signals.worker_process_init.connect(lambda **_: die_with_parent(), weak=False)


@app.task(name="pdf.extract", affinity=Affinity("pdf", tenant="{customer}"), throws=(UnreadableError,))
def extract_pdf(path, customer):
    return read_pdf(Path(path))


@app.task(name="excel.read", affinity=Affinity("excel", tenant="{customer}"), throws=(UnreadableError,))
def extract_excel(path, customer):
    return read_excel(Path(path))
