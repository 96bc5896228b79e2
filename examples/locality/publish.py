"""Publishes all questions together: `python -m examples.locality.publish CALLS`.

The order of the collections is random, but the same in each run.
"""

import random
import sys

from celery_affinity import publish_many
from examples.locality.app import COLLECTIONS, ask, ledger


def main(calls: int) -> None:
    rng = random.Random(1)
    searches = [(collection, word) for collection, (_, word) in COLLECTIONS.items()]
    questions = [(number, *rng.choice(searches)) for number in range(calls)]
    ledger.note("published", "client", calls)
    publish_many(ask, questions)


if __name__ == "__main__":
    main(int(sys.argv[1]))
