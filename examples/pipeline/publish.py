"""The client: publishes what a plan says, when it says so: `python -m examples.pipeline.publish PLAN`."""

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

#: A user waits for this. Stock Celery has no such word, so there the same chain goes without.
ON_DEMAND: Options = {} if STOCK else {"on_demand": True}

#: What has been read should be found soon: 5 of 0..10 goes before other queued jobs that fit the same slot.
FIND_SOON: Options = {} if STOCK else {"affinity": Affinity("index", priority=5)}


def pipeline(path: str, mode: str) -> chain:
    """Return the chain for one document: read it, then index it."""
    extract = extract_pdf if path.lower().endswith(".pdf") else extract_excel
    # The header is for the numbers alone: on stock Celery too they must tell the modes apart.
    options = {"headers": {"mode": mode}} | (ON_DEMAND if mode == "on_demand" else {})
    return extract.s(path).set(**options) | index_document.s().set(**options, **FIND_SOON)


def main() -> None:
    started = time.monotonic()
    for request in plan.load(Path(sys.argv[1])):
        time.sleep(max(0.0, started + request.at - time.monotonic()))
        pipeline(request.path, request.mode).apply_async()


if __name__ == "__main__":
    main()
