"""Publishes the calls of a plan at their times: `python -m examples.customers.publish PLAN`.

The plan's queued calls become calls of FLOOD, all published together, and all for PDFs. The on-demand calls become
calls of the other two customers: ACME has spreadsheets only, SMALL has both types.
"""

import sys
import time
from itertools import cycle
from pathlib import Path

from examples.customers.app import ACME, FLOOD, SMALL, extract_excel, extract_pdf
from examples.pipeline import plan
from examples.pipeline.documents import type_of


def main(path: Path) -> None:
    requests, others = plan.load(path), cycle((ACME, SMALL))
    pdfs = cycle([request.path for request in requests if type_of(Path(request.path)) == "pdf"])
    begin_s = min(request.at for request in requests if request.mode == "queued")
    calls = [(begin_s, next(pdfs), FLOOD) for request in requests if request.mode == "queued"]
    for request in requests:
        if request.mode != "queued":
            customer = SMALL if type_of(Path(request.path)) == "pdf" else next(others)
            calls.append((request.at, request.path, customer))
    started = time.monotonic()
    for at_s, document, customer in sorted(calls):
        time.sleep(max(0.0, started + at_s - time.monotonic()))
        task = extract_pdf if type_of(Path(document)) == "pdf" else extract_excel
        task.delay(document, customer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
