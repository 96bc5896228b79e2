"""Claims that are held and run nowhere: an end that nobody noticed must not cost a slot for ever."""

from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..log_limit import limited_logger
from ..membership.held import ACKED, Held
from ..membership.reporting import Reporting
from . import unclaimed
from .buffers import BufferedRequest, waits

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

logger = limited_logger(__name__)

#: Time, s, for which a claim is found nowhere before its slot is freed: an end takes its time.
NOWHERE_FOR_S = 30.0

#: Interval, s, between two searches while a claim is found nowhere.
_SEARCHES_AGAIN_S = 5.0


class Strays:
    """Frees the slots of claims, and of requests without a claim, that *consumer* has nowhere any more.

    A task that runs, for however long, is in the pool. A job that waits is held beyond the slots, in a bucket of a rate
    limit, for a pool process, or in the buffer of its task's strategy. *reporting* is told of the ends.
    """

    def __init__(self, consumer: "Consumer", reporting: Reporting) -> None:
        self._consumer = consumer
        self._reporting = reporting
        self._since_s: dict[Any, float] = {}

    def free(self, *, loop_runs: bool) -> float | None:
        """Free the slots of strays. Return the seconds until the next search; None: there is no hurry.

        Nothing is a stray while the event loop stands still, since the loop reads the ends and moves requests on. Any
        thread may call this method. Raises nothing.
        """
        if not loop_runs:
            self._since_s.clear()
            return None
        try:
            self._search()
        except RuntimeError:
            return _SEARCHES_AGAIN_S  # a table changed while it was searched
        except Exception:
            logger.exception("The search for jobs that are held but do not run failed")
        return _SEARCHES_AGAIN_S if self._since_s else None

    def _search(self) -> None:
        self._drop_what_strategies_dropped()
        nowhere = dict(self._nowhere())
        now_s = monotonic()
        self._since_s = {each: self._since_s.get(each, now_s) for each in nowhere}
        for each, since_s in tuple(self._since_s.items()):
            if now_s - since_s >= NOWHERE_FOR_S:
                del self._since_s[each]
                self._free(each, nowhere[each])

    def _drop_what_strategies_dropped(self) -> None:
        for tag, held in self._reporting.claims.unended():
            if isinstance(held.request, BufferedRequest) and not held.request.is_in_the_pool():
                logger.error(
                    "%s is pending again: the strategy of its task has dropped it, and neither acked nor rejected it",
                    held.in_words,
                )
                self._reporting.claims.drop_from_buffer(tag)

    def _nowhere(self) -> Iterator[tuple[Any, Held | None]]:
        """Yield requests, or the tags of claims without one, each with its claim."""
        for tag, held in self._reporting.claims.unended():
            if held.request is None:
                if tag not in self._reporting.lookahead:
                    yield tag, held
            elif not self._is_here(held.request):
                yield held.request, held
        for each in unclaimed.requests():
            if not self._is_here(each):
                yield each, None

    def _is_here(self, each: Any) -> bool:
        if each.is_in_the_pool is not None:
            return bool(each.is_in_the_pool())
        return waits(self._consumer, each)

    def _free(self, each: Any, held: Held | None) -> None:
        what = f"Task {each.name}[{each.id}]" if held is None else held.in_words
        logger.error(
            "%s is held but has not run in this worker for %g s: its end went unnoticed. Its slot is freed%s",
            what,
            NOWHERE_FOR_S,
            "" if held is None or held.outcome == ACKED or held.void else "; it was not acked, so it is pending again",
        )
        if isinstance(each, str):
            self._reporting.end(each)
        else:
            each.end_unnoticed()
