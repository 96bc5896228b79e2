"""Rate limits next to other work: a job that waits for a rate token lends its slot.

Celery keeps such a job in a token bucket of its worker. The claim remains, but the worker reports an additional slot to
the server (`Member.lend`), so that other jobs can run. If too many jobs wait, the worker withdraws from their types for
a while. If other jobs have all slots when the token becomes available, the job returns to its lane with its age.
Another worker may have a slot, and a job must not wait here behind an hour-long task that the scheduler ignores.

A job that holds a key may wait only briefly, because it blocks the other jobs of the key. After that it is returned,
and the worker withdraws from its type until shortly before the token.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery.worker import state
from celery.worker.request import Request

from ..broker.failover import short_traceback
from ..leases.held_claim import HeldClaim
from ..log_limit import limited_logger
from ..results.reporter import describe_error

if TYPE_CHECKING:
    from kombu.utils.limits import TokenBucket

    from .cohort_member import CohortMembers
    from .consumer import AffinityConsumer

logger = limited_logger(__name__)
#: Maximum seconds for which a job may wait for a token while it holds a key.
_MAX_KEY_WAIT_S = 1.0
#: Seconds before a token at which the worker accepts key-holding jobs again. It is less than `_MAX_KEY_WAIT_S`, because
#: an inaccurate timer would otherwise return such a job a second time.
_ACCEPT_BEFORE_S = 0.9 * _MAX_KEY_WAIT_S


class RateLimits:
    """The token buckets of *consumer*, which notifies this class of each job that enters or leaves a bucket."""

    def __init__(self, consumer: "AffinityConsumer", members: "CohortMembers") -> None:
        self._consumer, self._members = consumer, members
        #: True if slots were ever lent, so that a job may arrive whose slot is taken.
        self.has_lent = False
        self._avoided: set[str] = set()

    def count(self) -> None:
        """Count the waiting jobs, and lend their slots."""
        claims = map(_claim_of, self.waiting())
        waiting = Counter(claim.type for claim in claims if claim is not None)
        self.has_lent = self.has_lent or bool(waiting)
        self._members.lend(waiting, self._avoided)

    def begin(self) -> None:
        """Continue after a lost connection, when Celery dropped the waiting requests and all timers."""
        self._avoided.clear()
        self.count()

    def waiting(self) -> Iterator[Request]:
        """Yield the requests of claims that wait for a token."""
        for bucket in self._buckets():
            yield from (request for request, _ in tuple(bucket.contents) if _is_claimed(request))

    def close(self) -> None:
        """Drop the waiting jobs, which the caller returns."""
        for bucket in self._buckets():
            _remove_claims(bucket)

    def _buckets(self) -> list[Any]:
        return [bucket for bucket in tuple(self._consumer.task_buckets.values()) if bucket and bucket.contents]

    def start_what_may(self, bucket: "TokenBucket", start: Callable[["TokenBucket"], None]) -> None:
        """Start the jobs of *bucket* that have tokens with *start*, in the order of their claims. Count the others."""
        self._end_expired(bucket)
        self._return_withdrawn(bucket)
        self._sort_by_claim(bucket)
        # Fill a full bucket from now on: kombu before 5.7 also counts its time since it was full, and would start two.
        if bucket._tokens >= bucket.capacity:
            bucket.timestamp = monotonic()
        if bucket.contents and self._members.room() <= -self._waiting_count() and bucket.expected_time(1) <= 0:
            self._return(_remove_claims(bucket))  # all of them, because the others would overtake the first
        try:
            start(bucket)
            self._return_key_holders(bucket)
        finally:
            self.count()

    def _return_key_holders(self, bucket: "TokenBucket") -> None:
        """Return jobs that would hold their keys for too long, and withdraw from their types until a token is near."""
        kept: list[Any] = []
        returned: list[Request] = []
        for entry in tuple(bucket.contents):
            request, wait_s = entry[0], bucket.expected_time(len(kept) + 1)
            claim = _claim_of(request)
            if claim is None or wait_s <= _MAX_KEY_WAIT_S or not request.holds_a_key:
                kept.append(entry)
                continue
            returned.append(request)
            if claim.type not in self._avoided:
                self._avoided.add(claim.type)
                self._consumer.timer.call_after(wait_s - _ACCEPT_BEFORE_S, self._accept_type, (claim.type,))
        if not returned:
            return
        bucket.clear_pending()
        bucket.contents.extend(kept)
        self.count()  # first: otherwise a worker that still accepts their types would get the returned jobs again
        for request in returned:
            logger.info(
                "Task %s[%s] is returned to its queue: others can use its key while it waits", request.name, request.id
            )
        self._give_back(returned)

    def _accept_type(self, type_: str) -> None:
        """Accept jobs of *type_* again."""
        self._avoided.discard(type_)
        self.count()

    def _end_expired(self, bucket: "TokenBucket") -> None:
        """End jobs that have expired while waiting, so that they do not use tokens of other jobs."""
        for entry in tuple(bucket.contents):
            request = entry[0]
            if _is_claimed(request) and request.expires and request.maybe_expire():
                bucket.contents.remove(entry)
                try:
                    request.revoked()
                except Exception as exc:  # from a result backend or a signal handler: the other jobs continue
                    logger.error(
                        "The expiry of task %s[%s] cannot be reported to its caller: %s",
                        *(request.name, request.id, describe_error(exc)),
                        exc_info=short_traceback(exc),
                    )

    def _return_withdrawn(self, bucket: "TokenBucket") -> None:
        """Return jobs that were claimed before a pause."""
        for entry in tuple(bucket.contents):
            request = entry[0]
            if _is_claimed(request) and request._reporting.claims.is_withdrawn(request._tag):
                bucket.contents.remove(entry)
                logger.info("Task %s[%s] is returned to its queue: it is paused", request.name, request.id)
                self._give_back([request])

    def start_if_there_is_room(self, request: Request, start: Callable[[Request], Any]) -> Any:
        """Start the task of *request* with *start*, or return the job if its slot is taken."""
        # The job was sent for a lent slot, but the lender has started since.
        if self.has_lent and _is_claimed(request) and self._members.room() < -self._waiting_count():
            self._return([request])
            return None
        return start(request)

    def change(self, reset: Callable[[], None]) -> None:
        """Set the limits again with *reset*. Move the waiting jobs too, which Celery leaves in the old buckets."""
        old_buckets = {name: bucket for name, bucket in tuple(self._consumer.task_buckets.items()) if bucket}
        reset()
        self._avoided.clear()
        for name, bucket in old_buckets.items():
            new_bucket = self._consumer.task_buckets[name]
            if new_bucket is bucket:
                continue
            waiting = list(bucket.contents)
            bucket.clear_pending()
            for request, tokens in waiting:
                if new_bucket:
                    self._consumer._limit_task(request, new_bucket, tokens)
                else:
                    self._consumer._limit_move_to_pool(request)
        self.count()

    def _sort_by_claim(self, bucket: "TokenBucket") -> None:
        """Sort the waiting jobs by their claims, because a job in a reply can overtake a job in the inbox."""
        claims = [_claim_of(request) for request, _ in bucket.contents]
        fences = [int(claim.fence) for claim in claims if claim is not None]
        if len(fences) == len(claims) and fences != sorted(fences):
            sorted_entries = sorted(zip(fences, bucket.contents, strict=True), key=itemgetter(0))
            bucket.clear_pending()
            bucket.contents.extend(entry for _, entry in sorted_entries)

    def _waiting_count(self) -> int:
        return sum(1 for _ in self.waiting())

    def _return(self, requests: list[Request]) -> None:
        for request in requests:
            logger.info("Task %s[%s] is returned to its queue: its slot is taken", request.name, request.id)
        self._give_back(requests)

    def _give_back(self, requests: list[Request]) -> None:
        for request in requests:
            state.task_ready(request)
            request._reporting.give_back([request._tag])


def _is_claimed(request: Request) -> bool:
    return getattr(request, "_reporting", None) is not None


def _claim_of(request: Request) -> HeldClaim | None:
    return request._reporting.claims.find(request._tag) if _is_claimed(request) else None


def _remove_claims(bucket: "TokenBucket") -> list[Any]:
    """Remove the requests of claims from a bucket, and return them. Other requests, such as broadcasts', stay."""
    contents = tuple(bucket.contents)
    bucket.clear_pending()
    bucket.contents.extend(entry for entry in contents if not _is_claimed(entry[0]))
    return [request for request, _ in contents if _is_claimed(request)]
