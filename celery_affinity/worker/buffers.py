"""Jobs that a task's own strategy keeps in a buffer, as celery-batches does: each keeps its claim and takes no slot.

Celery's default strategy starts a task, or leaves its request in a place that Celery knows. Another strategy may keep
a message for as long as it likes, and later ack it, or start its task. So after such a strategy has received a claimed
job that is in none of those places, the job is in its buffer. Nobody can look into a buffer. But whoever may still ack
a message has the message: a message that is garbage will never be acked, and its job is pending again.
"""

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.app.task import Task
from celery.worker import state
from celery.worker.request import Request

from ..client.first_try import mode_of
from ..client.of_app import gathers
from ..membership.held import is_claim
from ..rules.lending import most_buffered

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

    from .fleet_consumer import FleetConsumer


logger = logging.getLogger(__name__)


class BufferedRequest:
    """Stands for the request of a claim whose message a strategy keeps: it does not keep the message itself alive."""

    worker_pid = None

    def __init__(self, message: Any, task: Task, task_id: str) -> None:
        self.id, self.name, self.task = task_id, task.name, task
        self._message = weakref.ref(message)

    def is_in_the_pool(self) -> bool:
        """Return whether the message may still be acked: it is in the buffer, or in a run of the pool."""
        return self._message() is not None

    def preempt(self) -> bool:
        """Return False: no task runs that could be stopped."""
        return False

    def fence(self) -> None:
        """Do nothing: the job cannot be taken out of the buffer."""

    def end_unnoticed(self) -> None:
        raise AssertionError("`Strays` drops it from the buffer")


def waits(consumer: "Consumer", request: Any) -> bool:
    """Return whether *request* waits in a place that Celery knows: for its time, a token, or a pool process."""
    if request in getattr(state, "scheduled_requests", ()):  # since Celery 5.7
        return True
    return _waits_for_a_token(consumer, request) or _waits_for_a_process(consumer, request)


def _waits_for_a_token(consumer: "Consumer", request: Any) -> bool:
    buckets = tuple(consumer.task_buckets.values())
    return any(request is waiting for bucket in buckets if bucket for waiting, *_ in tuple(bucket.contents))


def _waits_for_a_process(consumer: "Consumer", request: Any) -> bool:
    semaphore = getattr(consumer.controller, "semaphore", None)
    waiting = tuple(semaphore._waiting) if semaphore is not None else ()
    return any(request is argument for _, arguments, *_ in waiting for argument in arguments)


class Buffers:
    """The buffers of the strategies of *consumer*'s tasks. For the event loop's thread."""

    def __init__(self, consumer: "FleetConsumer") -> None:
        self._consumer = consumer

    def noting(self, task: Task, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls *handle*, of the task's own strategy, and notes the message if it is kept."""

        def handle_and_note(message: Any, *args: Any, **options: Any) -> Any:
            result = handle(message, *args, **options)
            self._note(task, message)
            return result

        return handle_and_note

    def _note(self, task: Task, message: Any) -> None:
        tag = message.delivery_tag
        inbox = getattr(message.channel, "inbox", None)
        if inbox is None or not is_claim(tag):
            return
        reporting = inbox.reporting_of(tag)
        held = reporting.claims.find(tag)
        if held is None or held.ended_s is not None or any(tag in made for made in self._consumer.affinity_made_ahead):
            return
        request: Any = held.request
        if request is not None and self._is_celerys(request):
            return
        if held.slot_since_s is None:  # it was made ahead
            properties = message.properties
            on_demand, priority = bool(mode_of(properties)), properties.get("priority")
            reporting.claims.count_wait(tag, on_demand=on_demand, priority=priority)
        if request is not None:
            request.is_buffered = True
        task_id = message.headers.get("id", "") if request is None else request.id
        if self._consumer.affinity_limits is not None:
            self._consumer.affinity_limits.has_lent = True
        reporting.buffer(tag, BufferedRequest(message, task, task_id))
        if message.acknowledged:
            reporting.claims.drop_from_buffer(tag)  # the strategy has requeued it

    def _is_celerys(self, request: Any) -> bool:
        return (
            request.is_in_the_pool is not None or request in state.reserved_requests or waits(self._consumer, request)
        )


def warn_of_small_batches(consumer: "FleetConsumer", slots: int) -> None:
    """Log the tasks that gather more calls than this worker, with so many *slots*, keeps in buffers."""
    most = most_buffered(consumer.prefetch_multiplier, slots)
    for name in sorted(consumer.affinity_own_strategies):
        number = gathers(consumer.app.tasks[name])
        if number > most:
            logger.warning(
                "Task %s gathers %d calls (flush_every), but this worker keeps at most %d calls in buffers: a batch "
                "has no more, and runs when flush_interval is over. Set worker_prefetch_multiplier to %d or more",
                *(name, number, most, -(-number // slots)),
            )


def take_back(request: Request) -> bool:
    """Have the claim of *request* take a slot again if the request was in a buffer. Return whether it was."""
    was_buffered: bool = getattr(request, "is_buffered", False)
    if was_buffered:
        request.is_buffered = False
        request._reporting.take_back(request._tag, request)
    return was_buffered
