"""Publishes questions, all at once, about collections in a random order, the same each time: `... publish CALLS`."""

import random
import sys

from celery_affinity import publish_many
from examples.locality.app import COLLECTIONS, ask, ledger


def main(calls: int) -> None:
    chance = random.Random(1)
    words = [(collection, word) for collection, (_, word) in COLLECTIONS.items()]
    questions = [(number, *chance.choice(words)) for number in range(calls)]
    ledger.note("published", "client", calls)
    publish_many(ask, questions)


if __name__ == "__main__":
    main(int(sys.argv[1]))
