"""Publishes the batch, and then a call of the customer every six seconds.

Usage: `python -m examples.preemption.publish DOCUMENTS CALLS`.
"""

import sys
import time

from examples.preemption.__main__ import BATCH, EVERY_S, SLOTS
from examples.preemption.app import archive, ledger, open_invoice


def main(number: int, calls: int) -> None:
    for job, is_cooperative in BATCH.items():
        archive.delay(job, number, is_cooperative)
    while len({note["who"] for note in ledger.notes("read")}) < SLOTS:
        time.sleep(0.1)  # until the batch has all slots
    for call in range(calls):
        time.sleep(EVERY_S)
        ledger.note("called", "customer", call)
        open_invoice.delay(call)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
