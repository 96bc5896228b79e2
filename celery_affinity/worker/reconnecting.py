"""A reconnect as soon as the server answers: Celery's own pauses between its tries grow to half a minute.

While the server is down, the heartbeats' thread calls it several times a second. A consumer that reconnects waits for
the word of that thread instead of sleeping. Meanwhile nobody runs the event loop, so the ends of tasks in pool
processes are read here: the heartbeats' thread tells the server these ends before the connection of the event loop is
back, which takes a second and more.
"""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from celery.worker.state import maybe_shutdown

from ..log_limit import limited_logger
from ..membership.membership import Membership
from .pools import read_results
from .seats import Seats

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

logger = limited_logger(__name__)

#: Interval, s, at which a waiting consumer looks for the word of the heartbeats' thread, and for ends of tasks.
_POLL_S = 0.05

#: Factor of the pauses that kombu gets: kombu would sleep through the real ones, so they are waited for here.
_SMALLER = 1e-6


class Reconnecting:
    """Makes *consumer* wait for its server by the word of the heartbeats' thread of *members*."""

    def __init__(self, consumer: "Consumer", members: Membership | Seats) -> None:
        self._consumer = consumer
        self._members = members
        self._known = 0

    def connected(self, connection: Any, connect: Callable[[Any], Any]) -> Any:
        """Return *connection*, which *connect*, Celery's own way, has connected."""
        ensure = connection.ensure_connection

        def ensuring(
            errback: Callable[[BaseException, float], None],
            max_retries: int | None = None,
            interval_start: float = 2,
            interval_step: float = 2,
            interval_max: float = 30,
            **options: Any,
        ) -> Any:
            def waiting(exc: BaseException, interval: float) -> None:
                pause_s = round(interval / _SMALLER, 3)
                errback(exc, pause_s)
                self._wait(pause_s)

            pauses = (each * _SMALLER for each in (interval_start, interval_step, interval_max))
            return ensure(waiting, max_retries, *pauses, **options)

        connection.ensure_connection = ensuring
        self._known = self._members.reporting.returns
        try:
            return connect(connection)
        finally:
            del connection.ensure_connection

    def _wait(self, pause_s: float) -> None:
        """Wait *pause_s*, or until the server is back; not at all if the server came back during the last try."""
        until_s = monotonic() + pause_s
        self._members.ask()
        while self._members.reporting.returns == self._known and monotonic() < until_s:
            maybe_shutdown()
            self._read_ends()
            sleep(_POLL_S)
        self._known = self._members.reporting.returns

    def _read_ends(self) -> None:
        try:
            read_results(self._consumer.pool)
        except Exception:
            logger.exception("The ends of tasks cannot be read during the reconnect: they are noticed after it")
