"""Acks and rejections: the end of a claimed job is told to its claim; kombu's own messages keep kombu's ways."""

from typing import Any

import redis
from kombu.transport import redis as stock

from ..callers.failure import why_refused
from ..log_limit import limited_logger
from ..membership.held import ACKED, REJECTED, REQUEUED, UNSETTLED, is_claim
from ..rules.unreadable import shown
from ..server import received
from ..server.passing import refuses_writes

logger = limited_logger(__name__)


class QoS(stock.QoS):
    """The acks of claimed jobs. kombu handles the acks of other messages."""

    def can_consume(self) -> bool:
        # A claimed job has its slot, so prefetch must not keep it in the inbox.
        return self.channel.inbox is not None or super().can_consume()

    def can_prefetch(self) -> bool:
        """Return whether prefetch allows another message from the lists of queues that are not scheduled."""
        return bool(super().can_consume())

    def append(self, message: Any, delivery_tag: str) -> None:
        if not is_claim(delivery_tag):
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        if is_claim(delivery_tag):
            self._settle(delivery_tag, ACKED)
        else:
            super().ack(delivery_tag)
            self.channel.resume_lists()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if is_claim(delivery_tag):
            self._settle(delivery_tag, REQUEUED if requeue else REJECTED)
        else:
            super().reject(delivery_tag, requeue=requeue)
            self.channel.resume_lists()

    def holds(self, delivery_tag: str) -> bool:
        """Return whether a message from one of kombu's lists is neither acked nor rejected so far."""
        return delivery_tag in self._delivered and delivery_tag not in self._dirty

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Requeue messages of dead stock workers. A server that takes no writes is asked again at the next interval."""
        try:
            super().restore_visible(*args, **kwargs)
        except (redis.ConnectionError, redis.ResponseError) as exc:
            if not refuses_writes(exc.__cause__ or exc):
                raise
            logger.debug("The server takes no writes: unacknowledged messages are restored later")

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        try:
            super().restore_by_tag(tag, client=client, leftmost=leftmost)
        except received.LOST:
            raise
        except Exception as exc:  # a bad entry must neither keep the worker from starting, nor hold back the others
            logger.error("The unacknowledged messages under %s cannot be restored: %r", shown(tag), exc)

    def _settle(self, delivery_tag: str, outcome: str) -> None:
        inbox = self.channel.inbox
        if inbox is not None:
            reporting = inbox.reporting_of(delivery_tag)
            held = reporting.claims.find(delivery_tag)
            is_refused = held is not None and held.request is None
            if outcome == REQUEUED and not is_refused:
                outcome = UNSETTLED  # `EndOfTask` knows better whether the task asked for that
            reporting.settle(delivery_tag, outcome, why_refused() if is_refused else "")
