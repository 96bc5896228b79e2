"""The three tasks. Each declares its type: the kind of worker that it needs."""

from pathlib import Path

from celery import signals

from celery_affinity import Affinity
from examples.comparing import record
from examples.comparing.processes import die_with_parent
from examples.pipeline import index
from examples.pipeline.app import FOLDER, app
from examples.pipeline.documents import Document, UnreadableError, read_excel, read_pdf


def describe(name, args, kwargs):
    """Return a job's type and its document, for the report."""
    path = args[0] if isinstance(args[0], str) else args[0]["path"]
    return name.partition(".")[0], Path(path).name


record.enable(FOLDER, describe)
signals.worker_process_init.connect(lambda **_: die_with_parent(), weak=False)


def file_size(args, kwargs):
    """Return the size of the document in bytes, from which the fleet predicts the duration of the job."""
    return Path(args[0]).stat().st_size


@app.task(name="pdf.extract", affinity=Affinity("pdf", size=file_size), throws=(UnreadableError,))
def extract_pdf(path: str) -> Document:
    return read_pdf(Path(path))


@app.task(name="excel.read", affinity=Affinity("excel", size=file_size), throws=(UnreadableError,))
def extract_excel(path: str) -> Document:
    return read_excel(Path(path))


@app.task(name="index.add", affinity="index")
def index_document(document: Document) -> int:
    return index.add(FOLDER / index.NAME, document)
