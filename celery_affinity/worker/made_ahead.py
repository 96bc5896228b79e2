"""Celery's requests of the jobs that start next, made while other tasks run.

A request takes longer to make (the message is read, the task's strategy runs) than a free pool process should wait. So
requests are made ahead for as many jobs held beyond the slots as the pool has slots. A job whose request is made waits
like the others: its claim has no request until the job starts, and the job can be given back.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from celery.worker import state
from celery.worker.request import Request

from ..client.first_try import mode_of
from ..membership.claims import Claims

if TYPE_CHECKING:
    from .fleet_consumer import FleetConsumer


class MadeAhead:
    """The requests of claims whose jobs wait for a slot of *consumer*, by delivery tag. For the event loop's thread."""

    def __init__(self, consumer: "FleetConsumer", claims: Claims) -> None:
        self._consumer, self._claims = consumer, claims
        self._requests: dict[str, Request] = {}
        self._keeps: str | None = None
        consumer.affinity_made_ahead.append(self)

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, tag: str) -> bool:
        return tag in self._requests

    def make(self, tag: str, consume: Callable[[], None]) -> bool:
        """Keep the request that *consume* makes for the claim of *tag*. Return False if the job has ended, or has gone.

        A message may be refused, for example, and a task may have expired or be revoked.
        """
        self._keeps = tag
        try:
            consume()
        finally:
            self._keeps = None
        return tag in self._requests

    def start(self, tag: str) -> None:
        """Start the task of *tag*, whose request was made, and which has a slot now."""
        request = self._requests.pop(tag)
        self._claims.bind(tag, request)
        properties = request.request_dict["properties"]
        self._claims.count_wait(tag, on_demand=bool(mode_of(properties)), priority=properties.get("priority"))
        bucket = self._consumer.task_buckets.get(request.name)  # of today's limit: that of the making may be gone
        if bucket:
            self._consumer._limit_task(request, bucket, 1)
        else:
            self._consumer.on_task_request(request)

    def drop(self, tags: Collection[str]) -> None:
        """Drop the requests of *tags*: their jobs start elsewhere."""
        for tag in tags:
            request = self._requests.pop(tag, None)
            if request is not None:
                state.task_ready(request)

    def clear(self) -> None:
        """Drop all requests."""
        self.drop(tuple(self._requests))

    def keeps(self, request: Request) -> bool:
        """Keep *request* if it is the one that is being made, and return whether it is."""
        tag = self._keeps
        if tag is None or getattr(request, "_tag", None) != tag:
            return False
        self._claims.unbind(tag)
        self._requests[tag] = request
        return True
