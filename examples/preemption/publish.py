"""Publishes the batch, and then a call of the customer now and then: `... publish DOCUMENTS CALLS`."""

import sys
import time

from examples.preemption.__main__ import BATCH, EVERY_S, SLOTS
from examples.preemption.app import archive, ledger, look


def main(number: int, calls: int) -> None:
    for job, asks in BATCH.items():
        archive.delay(job, number, asks)
    while len({each["who"] for each in ledger.notes("read")}) < SLOTS:
        time.sleep(0.1)  # until the batch has all slots
    for call in range(calls):
        time.sleep(EVERY_S)
        ledger.note("called", "customer", call)
        look.delay(call)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
