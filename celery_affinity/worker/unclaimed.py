"""Requests that take a slot of the pool without a claim: those of broadcast tasks, and of queues left to kombu."""

import threading
from weakref import WeakSet

from celery.worker.request import Request
from celery.worker.state import reserved_requests

_unclaimed: WeakSet[Request] = WeakSet()
_lock = threading.RLock()  # heartbeats count the requests, in a thread of their own


def add(request: Request) -> None:
    """Remember *request* for as long as Celery has it."""
    with _lock:
        _unclaimed.add(request)


def requests() -> list[Request]:
    """Return the requests without a claim that have not ended yet."""
    if not _unclaimed:
        return []
    with _lock:
        return [each for each in _unclaimed if each in reserved_requests]


def count() -> int:
    """Return how many slots these requests take: one each."""
    return len(requests())
