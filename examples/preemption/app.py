"""The Celery app: a batch that reads an archive, and a customer who opens a short document."""

from contextlib import suppress
from itertools import cycle, islice

from celery_affinity import Affinity, Preempted, Tenant, preempted
from examples.comparing.side_app import app_of, side
from examples.pipeline import documents

#: Name of the side -> title.
SIDES = {"waits": "without preemption", "preempts": "with a preemptible batch"}

SIDE, DOCS, ledger = side("preempts")

#: A job that does not call `preempted()` saves a checkpoint each time it has read this number of documents.
SAVE_EVERY = 10

app = app_of("preemption", ledger)
app.conf.update(
    affinity_tenants={"customer": Tenant(min=1)},
    affinity_preemption_delay=1,  # much shorter delays than in production, so that the example is short
    affinity_preemption_grace=2,
    affinity_preemption_exempt=4,
)


def read(path):
    with suppress(documents.UnreadableError):  # some of the example's documents are damaged on purpose
        documents.read_pdf(path) if documents.type_of(path) == "pdf" else documents.read_excel(path)


@app.task(
    name="preemption.archive",
    acks_late=True,
    affinity=Affinity("documents", tenant="night", preemptible=SIDE == "preempts"),
)
def archive(job, number, is_cooperative):
    """Read *number* documents, starting at the checkpoint. A job that is not cooperative is stopped by force."""
    paths, first = cycle(documents.find(DOCS)[0]), ledger.checkpoint(job)
    for position, path in enumerate(islice(paths, first, number), first):
        if is_cooperative and preempted():
            ledger.save(job, position)
            raise Preempted
        if not is_cooperative and position % SAVE_EVERY == 0:
            ledger.save(job, position)
        read(path)
        ledger.note("read", job, position)
    ledger.note("ended", job, number)


@app.task(name="preemption.open_invoice", acks_late=True, affinity=Affinity("documents", tenant="customer"))
def open_invoice(call):
    ledger.note("opened", "customer", call)
    smallest = min(documents.find(DOCS)[0], key=lambda path: path.stat().st_size)
    read(smallest)
