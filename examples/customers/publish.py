"""Publishes what a plan says, when it says so: `python -m examples.customers.publish PLAN`.

The batch of the plan comes from the customer that floods, all of it at once, and only as PDFs. The requests of users
come from the other two: acme has spreadsheets only, small has both types.
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
    pdfs = cycle([each.path for each in requests if type_of(Path(each.path)) == "pdf"])
    begin = min(each.at for each in requests if each.mode == "queued")
    calls = [(begin, next(pdfs), FLOOD) for each in requests if each.mode == "queued"]
    for each in requests:
        if each.mode != "queued":
            customer = SMALL if type_of(Path(each.path)) == "pdf" else next(others)
            calls.append((each.at, each.path, customer))
    started = time.monotonic()
    for at, document, customer in sorted(calls):
        time.sleep(max(0.0, started + at - time.monotonic()))
        task = extract_pdf if type_of(Path(document)) == "pdf" else extract_excel
        task.delay(document, customer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
