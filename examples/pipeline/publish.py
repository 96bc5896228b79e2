"""The client: publishes the calls of a plan at their times: `python -m examples.pipeline.publish PLAN`."""

import sys
import time
from pathlib import Path
from typing import Any

from celery import chain

from celery_affinity import Affinity
from examples.pipeline import plan
from examples.pipeline.app import STOCK
from examples.pipeline.tasks import extract_excel, extract_pdf, index_document

Options = dict[str, Any]

#: Options of a chain that a user waits for. Stock Celery has no such option, so its chain has none.
ON_DEMAND: Options = {} if STOCK else {"on_demand": True}

#: A document should be searchable soon after it was read. With a priority of 5 (of 0 to 10), its index job starts
#: before other queued jobs for the same slot.
INDEX_SOON: Options = {} if STOCK else {"affinity": Affinity("index", priority=5)}


def pipeline(path: str, mode: str) -> chain:
    """Return the chain for one document: read it, then index it."""
    extract = extract_pdf if path.lower().endswith(".pdf") else extract_excel
    # The header is only for the report, which needs the mode of each call on stock Celery, too.
    options = {"headers": {"mode": mode}} | (ON_DEMAND if mode == "on_demand" else {})
    return extract.s(path).set(**options) | index_document.s().set(**options, **INDEX_SOON)


def main() -> None:
    started = time.monotonic()
    for request in plan.load(Path(sys.argv[1])):
        time.sleep(max(0.0, started + request.at - time.monotonic()))
        pipeline(request.path, request.mode).apply_async()


if __name__ == "__main__":
    main()
