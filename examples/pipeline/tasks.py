"""The three tasks. Each says what kind of worker it needs: that is its type."""

from pathlib import Path

from celery import signals

from examples.pipeline import index, record
from examples.pipeline.app import FOLDER, app
from examples.pipeline.documents import Document, UnreadableError, read_excel, read_pdf
from examples.pipeline.processes import die_with_parent

record.to(FOLDER)
signals.worker_process_init.connect(lambda **_: die_with_parent(), weak=False)


@app.task(name="pdf.extract", affinity="pdf", throws=(UnreadableError,))
def extract_pdf(path: str) -> Document:
    return read_pdf(Path(path))


@app.task(name="excel.read", affinity="excel", throws=(UnreadableError,))
def extract_excel(path: str) -> Document:
    return read_excel(Path(path))


@app.task(name="index.add", affinity="index")
def index_document(document: Document) -> int:
    return index.add(FOLDER / index.NAME, document)
