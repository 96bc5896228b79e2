"""The Celery app: a batch that reads an archive, and a customer who looks at a short document now and then."""

from contextlib import suppress
from itertools import cycle, islice

from celery_affinity import Affinity, Preempted, Tenant, preempted
from examples.comparing.side_app import app_of, side
from examples.pipeline import documents

#: The sides -> what each is called.
SIDES = {"waits": "the customer waits for an end", "preempts": "the batch may be stopped"}

SIDE, DOCS, ledger = side("preempts")

#: A batch that does not ask saves after so many documents.
SAVES_EVERY = 10

app = app_of("preemption", ledger)
app.conf.update(
    affinity_tenants={"customer": Tenant(min=1)},
    affinity_preemption_delay=1,  # minutes become seconds in an example
    affinity_preemption_grace=2,
    affinity_preemption_exempt=4,
)


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
