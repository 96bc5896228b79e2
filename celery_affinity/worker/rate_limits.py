"""Rate limits beside other work: a job that waits for a token lends its slot.

Celery keeps such a job in a token bucket of its worker. The claim stays, but the worker tells the server of one slot
more than it has (`Membership.lend`), so that other jobs run meanwhile. When too many jobs wait, the worker withdraws
from their types for a while. If other jobs have all slots when the token comes, the job goes back to its lane, its age
intact: another worker may have a slot, and no job is to wait here for a task of an hour behind the scheduler's back.

A job that holds a key waits for a moment at most, or it would keep others of the key from running anywhere: it goes
back, and the worker withdraws from its type until the token is near.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery.worker import state
from celery.worker.request import Request

from ..broker.failover import short_traceback
from ..leases.member import Member
from ..log_limit import limited_logger
from ..results.reporter import describe_error
from .cohort_member import CohortMembers
from .job_feed import JobFeed

if TYPE_CHECKING:
    from kombu.utils.limits import TokenBucket

    from .consumer import AffinityConsumer

logger = limited_logger(__name__)

#: Longest time, s, for which a job may wait for a token while it holds a key.
_HOLDS_A_KEY_S = 1.0

#: Time before a token, s, at which the worker takes jobs of keys again: less than that, or a moment's inaccuracy of a
#: timer would have such a job given back once more.
_TAKES_BEFORE_S = 0.9 * _HOLDS_A_KEY_S


class RateLimits:
    """The token buckets of *consumer*, which passes on each way in and out of them."""

    def __init__(
        self, consumer: "AffinityConsumer", members: Member | CohortMembers, following: JobFeed | CohortMembers
    ) -> None:
        self._consumer = consumer
        self._members, self._following = members, following
        #: Whether slots were ever lent, so that a job may come whose slot is taken.
        self.has_lent = False
        self._avoided: set[str] = set()

    def count(self) -> None:
        """Count the jobs that wait, and lend their slots."""
        find = self._members.claims.find
        claims = (find(request._tag) for request in self.waiting())
        waiting = Counter(held.type for held in claims if held is not None)
        self.has_lent = self.has_lent or bool(waiting)
        self._members.lend(waiting, frozenset(self._avoided))

    def begin(self) -> None:
        """Go on after a lost connection, which made Celery drop the requests that waited, and all timers."""
        self._avoided.clear()
        self.count()

    def waiting(self) -> Iterator[Request]:
        """Yield the requests of claims that wait for a token."""
        for bucket in self._buckets():
            yield from (request for request, _ in tuple(bucket.contents) if _is_claimed(request))

    def close(self) -> None:
        """Drop the jobs that wait: they are given back."""
        for bucket in self._buckets():
            _remove_claims(bucket)

    def _buckets(self) -> list[Any]:
        return [bucket for bucket in tuple(self._consumer.task_buckets.values()) if bucket and bucket.contents]

    def start_what_may(self, bucket: "TokenBucket", start: Callable[["TokenBucket"], None]) -> None:
        """Have *start* start the jobs of *bucket* that have tokens, in the order of their claims. Count the others."""
        self._end_expired(bucket)
        self._return_what_is_recalled(bucket)
        self._put_in_order(bucket)
        _forget_idle_time(bucket)
        if bucket.contents and self._following.room() <= -self._number_waiting() and bucket.expected_time(1) <= 0:
            self._return(_remove_claims(bucket))  # all of them, or the others would overtake the first
        try:
            start(bucket)
            self._return_what_holds_a_key(bucket)
        finally:
            self.count()

    def _return_what_holds_a_key(self, bucket: "TokenBucket") -> None:
        """Give back jobs that would hold their keys for long, and take no more of their types until a token is near."""
        stay: list[Any] = []
        go: list[Request] = []
        for each in tuple(bucket.contents):
            request, wait_s = each[0], bucket.expected_time(len(stay) + 1)
            held = self._members.claims.find(request._tag) if _is_claimed(request) else None
            if held is None or wait_s <= _HOLDS_A_KEY_S or not request.holds_a_key:
                stay.append(each)
                continue
            go.append(request)
            if held.type not in self._avoided:
                self._avoided.add(held.type)
                self._consumer.timer.call_after(wait_s - _TAKES_BEFORE_S, self._want, (held.type,))
        if not go:
            return
        bucket.clear_pending()
        bucket.contents.extend(stay)
        self.count()  # first: once the jobs are given back, a worker that still takes their types gets them again
        for request in go:
            logger.info("Task %s[%s] is given back: others may use its key while it waits", request.name, request.id)
        self._give_back(go)

    def _want(self, type_: str) -> None:
        """Take jobs of *type_* again."""
        self._avoided.discard(type_)
        self.count()

    def _end_expired(self, bucket: "TokenBucket") -> None:
        """End jobs that have expired while waiting: none of them uses a token that another job may have."""
        for each in tuple(bucket.contents):
            request = each[0]
            if _is_claimed(request) and request.expires and request.maybe_expire():
                bucket.contents.remove(each)
                try:
                    request.revoked()
                except Exception as exc:  # of a result backend, or of a signal's handler: the other jobs go on
                    logger.error(
                        "Cannot tell the caller of task %s[%s] that the task has expired: %s",
                        *(request.name, request.id, describe_error(exc)),
                        exc_info=short_traceback(exc),
                    )

    def _return_what_is_recalled(self, bucket: "TokenBucket") -> None:
        """Give back jobs that wait since before a pause."""
        if not self._members.withdrawn_types:
            return
        for each in tuple(bucket.contents):
            request = each[0]
            held = self._members.claims.find(request._tag) if _is_claimed(request) else None
            if held is not None and self._members.withdrawn_types.has(held.job_id, held.type, held.fence):
                bucket.contents.remove(each)
                logger.info("Task %s[%s] is given back: it is paused", request.name, request.id)
                self._give_back([request])

    def start_if_there_is_room(self, request: Request, start: Callable[[Request], Any]) -> Any:
        """Have *start* start the task of *request*, or give the job back if its slot is taken."""
        # The job came for a slot that was lent, but the lender has started meanwhile.
        if self.has_lent and _is_claimed(request) and self._following.room() < -self._number_waiting():
            self._return([request])
            return None
        return start(request)

    def change(self, reset: Callable[[], None]) -> None:
        """Set the limits anew, by *reset*, for the jobs that wait as well, which Celery leaves to the old ones."""
        before = {name: bucket for name, bucket in tuple(self._consumer.task_buckets.items()) if bucket}
        reset()
        self._avoided.clear()
        for name, bucket in before.items():
            now = self._consumer.task_buckets[name]
            if now is bucket:
                continue
            waiting = list(bucket.contents)
            bucket.clear_pending()
            for request, tokens in waiting:
                if now:
                    self._consumer._limit_task(request, now, tokens)
                else:
                    self._consumer._limit_move_to_pool(request)
        self.count()

    def _put_in_order(self, bucket: "TokenBucket") -> None:
        """Sort the jobs that wait by their claims: a job in a reply may pass one that is still in the inbox."""
        find = self._members.claims.find
        claims = [find(getattr(request, "_tag", "")) for request, _ in bucket.contents]
        fences = [int(held.fence) for held in claims if held is not None]
        if len(fences) == len(claims) and fences != sorted(fences):
            in_order = sorted(zip(fences, bucket.contents, strict=True), key=itemgetter(0))
            bucket.clear_pending()
            bucket.contents.extend(each for _, each in in_order)

    def _number_waiting(self) -> int:
        return sum(1 for _ in self.waiting())

    def _return(self, requests: list[Request]) -> None:
        for request in requests:
            logger.info("Task %s[%s] is given back: its slot is taken", request.name, request.id)
        self._give_back(requests)

    def _give_back(self, requests: list[Request]) -> None:
        for request in requests:
            state.task_ready(request)
        self._members.give_back([request._tag for request in requests])


def _forget_idle_time(bucket: "TokenBucket") -> None:
    """Let a full bucket fill from now on: kombu before 5.7 also counts the time it was full, so that two jobs start."""
    if bucket._tokens >= bucket.capacity:
        bucket.timestamp = monotonic()


def _is_claimed(request: Request) -> bool:
    return getattr(request, "_reporting", None) is not None


def _remove_claims(bucket: "TokenBucket") -> list[Any]:
    """Remove the requests of claims from a bucket, and return them. Other requests, such as broadcasts', stay."""
    contents = tuple(bucket.contents)
    bucket.clear_pending()
    bucket.contents.extend(each for each in contents if not _is_claimed(each[0]))
    return [request for request, _ in contents if _is_claimed(request)]
