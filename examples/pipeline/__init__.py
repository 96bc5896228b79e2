"""A document pipeline on Celery: tasks read PDFs and spreadsheets and add them to a full-text index.

    python -m examples.pipeline [--docs FOLDER]      compare celery_affinity with stock Celery
    python -m examples.pipeline.search WORD ...      search the index

Read `tasks.py` and `publish.py` first: they are the application. The other modules start the workers and
measure.
"""

from pathlib import Path

#: Default folder for the results: one subfolder per side, and the page.
OUTPUT = Path(__file__).parent.parent.parent / "demo-output"
