"""Publishes the calls of both customers in turn. Each customer has enough calls to keep all slots busy."""

import sys
from itertools import zip_longest

import redis

from examples.shares.app import CUSTOMERS, PUBLISHED, STOCK, app, keyprefix, side, url, work


def main(seconds: float) -> None:
    """Publish calls of *seconds* of work for each customer, evenly mixed."""
    calls = [[(name, took)] * round(seconds / took) for name, (_, took) in CUSTOMERS.items()]
    quick_per_slow = max(map(len, calls)) // min(map(len, calls))
    quick, slow = sorted(calls, key=len, reverse=True)
    groups = [quick[first : first + quick_per_slow] for first in range(0, len(quick), quick_per_slow)]
    mixed = [call for group, one in zip_longest(groups, slow) for call in (*(group or ()), one) if call is not None]
    if side == STOCK:
        with app.producer_or_acquire() as producer:
            for call in mixed:
                work.apply_async(call, producer=producer)
    else:
        from celery_affinity import publish_many

        publish_many(work, mixed)
    redis.Redis.from_url(url).set(keyprefix + PUBLISHED, 1)


if __name__ == "__main__":
    main(float(sys.argv[1]))
