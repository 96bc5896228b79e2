"""The three tasks. Each says what kind of worker it needs: that is its type."""

from pathlib import Path

from celery import signals

from celery_affinity import Affinity
from examples.comparing import record
from examples.comparing.processes import die_with_parent
from examples.pipeline import index
from examples.pipeline.app import FOLDER, app
from examples.pipeline.documents import Document, UnreadableError, read_excel, read_pdf


def describe(name, args, kwargs):
    """Return a job's type and its document, for the numbers."""
    path = args[0] if isinstance(args[0], str) else args[0]["path"]
    return name.partition(".")[0], Path(path).name


record.to(FOLDER, describe)
signals.worker_process_init.connect(lambda **_: die_with_parent(), weak=False)


def size_of_file(args, kwargs):
    """Return the number of bytes of a call's document, which predicts how long the reading takes."""
    return Path(args[0]).stat().st_size


@app.task(name="pdf.extract", affinity=Affinity("pdf", size=size_of_file), throws=(UnreadableError,))
def extract_pdf(path: str) -> Document:
    return read_pdf(Path(path))


@app.task(name="excel.read", affinity=Affinity("excel", size=size_of_file), throws=(UnreadableError,))
def extract_excel(path: str) -> Document:
    return read_excel(Path(path))


@app.task(name="index.add", affinity="index")
def index_document(document: Document) -> int:
    return index.add(FOLDER / index.NAME, document)
