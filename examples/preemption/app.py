"""The Celery app: a batch that reads an archive, and a customer who looks at a short document now and then."""

import os
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path

from celery import Celery, signals

from celery_affinity import Affinity, Preempted, Tenant, preempted
from examples.comparing.processes import die_with_parent
from examples.pipeline import documents
from examples.preemption.ledger import Ledger

#: The sides -> what each is called.
SIDES = {"waits": "the customer waits for an end", "preempts": "the batch may be stopped"}

SIDE = os.environ.get("PREEMPTION_SIDE", "preempts")
DOCS = Path(os.environ.get("PREEMPTION_DOCS", Path(__file__).parent.parent / "documents"))
ledger = Ledger(Path(os.environ.get("PREEMPTION_FOLDER", "demo-output")))

#: A batch that does not ask saves after so many documents.
SAVES_EVERY = 10

app = Celery("preemption", broker=os.environ.get("REDIS_URL", "redis://localhost"), set_as_current=False)
app.conf.update(
    broker_transport="celery_affinity:Transport",
    broker_transport_options={"global_keyprefix": os.environ.get("PREEMPTION_KEYPREFIX", "")},
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    affinity_tenants={"customer": Tenant(min=1)},
    affinity_preemption_delay=1,  # minutes become seconds in an example
    affinity_preemption_grace=2,
    affinity_preemption_exempt=4,
)
signals.worker_process_init.connect(lambda **_: die_with_parent(), weak=False)


def read(path):
    with suppress(documents.UnreadableError):  # some of the papers are damaged on purpose
        documents.read_pdf(path) if documents.type_of(path) == "pdf" else documents.read_excel(path)


@app.task(
    name="preemption.archive",
    acks_late=True,
    affinity=Affinity("documents", tenant="night", preemptible=SIDE == "preempts"),
)
def archive(job, number, asks):
    """Read *number* documents, from the checkpoint on. A job that never *asks* is stopped by force."""
    papers, begin = cycle(documents.find(DOCS)[0]), ledger.checkpoint(job)
    for at, path in enumerate(islice(papers, begin, number), begin):
        if asks and preempted():
            ledger.save(job, at)
            raise Preempted
        if not asks and at % SAVES_EVERY == 0:
            ledger.save(job, at)
        read(path)
        ledger.note("read", job, at)
    ledger.note("ended", job, number)


@app.task(name="preemption.look", acks_late=True, affinity=Affinity("documents", tenant="customer"))
def look(call):
    ledger.note("looked", "customer", call)
    smallest = min(documents.find(DOCS)[0], key=lambda path: path.stat().st_size)
    read(smallest)
