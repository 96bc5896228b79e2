"""A document pipeline on Celery: PDFs and spreadsheets are read, and go into a full-text index.

    python -m examples.pipeline [--docs FOLDER]      run it, on celery_affinity and on stock Celery
    python -m examples.pipeline.search WORD ...      search what was read

Read `tasks.py` and `publish.py` first: they are all that an application would hold. The rest starts
the workers and measures.
"""

from pathlib import Path

#: Where the demo writes, unless it is told otherwise: one folder for each side, and the page.
OUTPUT = Path(__file__).parent.parent.parent / "demo-output"
