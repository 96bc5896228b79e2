"""Track jobs in the buffers of custom strategies, such as celery-batches: a buffered job keeps its claim, but no slot.

Celery's default strategy starts a task or stores its request in a collection that Celery exposes. A custom strategy can
keep a message for any time, and ack it or start its task later. A claimed job that a custom strategy has received, and
that is in none of Celery's collections, is in the strategy's buffer, which cannot be inspected. But code that can still
ack the message holds a reference to it. A garbage-collected message can no longer be acked, so the job is requeued.
"""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.app.task import Task
from celery.worker import state
from celery.worker.request import Request

from ..leases.held_claim import is_claim_tag
from ..log_limit import limited_logger
from ..policy.slot_math import max_buffered_calls
from ..publishing.app_config import gathers_messages
from ..publishing.option_sources import mode_of

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

    from .consumer import AffinityConsumer

logger = limited_logger(__name__)


class BufferedRequest:
    """Replaces the request of a buffered claim. It holds only a weak reference to the message."""

    worker_pid = None
    #: Unknown, like the run time of one call of a batch.
    size = None

    def __init__(self, message: Any, task: Task, task_id: str) -> None:
        self.id, self.name, self.task = task_id, task.name, task
        self._message = weakref.ref(message)

    def is_in_the_pool(self) -> bool:
        """Return True if the message can still be acked, because it is in the buffer or in a pool run."""
        return self._message() is not None

    def preempt(self) -> bool:
        """Return False, because there is no running task to stop."""
        return False

    def fence(self) -> None:
        """Do nothing, because the job cannot be removed from the strategy's buffer."""

    def end_leaked(self) -> None:
        raise AssertionError("`LeakedClaims` drops it from the buffer")


def is_buffered(consumer: "Consumer", request: Any) -> bool:
    """Return True if *request* waits in one of Celery's collections: for its ETA, a rate token or a pool process."""
    if request in getattr(state, "scheduled_requests", ()):  # since Celery 5.7
        return True
    buckets = tuple(consumer.task_buckets.values())
    if any(request is waiting for bucket in buckets if bucket for waiting, *_ in tuple(bucket.contents)):
        return True
    semaphore = getattr(consumer.controller, "semaphore", None)
    waiting = tuple(semaphore._waiting) if semaphore is not None else ()
    return any(request is argument for _, arguments, *_ in waiting for argument in arguments)


def recording_buffered(consumer: "AffinityConsumer", task: Task, handle: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap *handle*, the handler of *task*'s custom strategy, to record a message that the strategy buffers.

    The handler runs in the event loop's thread.
    """

    def handle_and_record(message: Any, *args: Any, **options: Any) -> Any:
        result = handle(message, *args, **options)
        _record_buffered(consumer, task, message)
        return result

    return handle_and_record


def _record_buffered(consumer: "AffinityConsumer", task: Task, message: Any) -> None:
    tag = message.delivery_tag
    inbox = getattr(message.channel, "inbox", None)
    if inbox is None or not is_claim_tag(tag):
        return
    reporter = inbox.reporting_of(tag)
    claim = reporter.claims.find(tag)
    if claim is None or claim.ended_s is not None or any(tag in prebuilt for prebuilt in consumer.affinity_made_ahead):
        return
    request: Any = claim.request
    if request is not None and (
        request.is_in_the_pool is not None or request in state.reserved_requests or is_buffered(consumer, request)
    ):
        return  # Celery tracks it
    if claim.slot_since_s is None:  # the request was prefetched
        properties = message.properties
        on_demand, priority = bool(mode_of(properties)), properties.get("priority")
        reporter.claims.count_wait(tag, on_demand=on_demand, priority=priority)
    if request is not None:
        request.is_buffered = True
    task_id = message.headers.get("id", "") if request is None else request.id
    if consumer.affinity_limits is not None:
        consumer.affinity_limits.has_lent = True
    reporter.buffer(tag, BufferedRequest(message, task, task_id))
    if message.acknowledged:
        reporter.claims.drop_from_buffer(tag)  # the strategy has requeued it


def warn_of_small_batches(consumer: "AffinityConsumer", slots: int) -> None:
    """Log each task whose batches are larger than the buffer capacity of this worker with *slots* slots."""
    max_calls = max_buffered_calls(consumer.prefetch_multiplier, slots)
    for name in sorted(consumer.affinity_own_strategies):
        number = gathers_messages(consumer.app.tasks[name])
        if number > max_calls:
            logger.warning(
                "Task %s gathers %d calls (flush_every), but this worker keeps at most %d calls in buffers: a batch "
                "has no more, and runs when flush_interval is over. Set worker_prefetch_multiplier to %d or more",
                *(name, number, max_calls, -(-number // slots)),
            )


def requeue_buffered(request: Request) -> bool:
    """If *request* was buffered, make its claim occupy a slot again. Return True if the request was buffered."""
    was_buffered: bool = getattr(request, "is_buffered", False)
    if was_buffered:
        request.is_buffered = False
        request._reporting.take_back(request._tag, request)
    return was_buffered
