"""Celery's consumer, as that of a worker in a fleet: a class that derives from the one that `worker_consumer` names.

A reconnect as soon as the server answers: Celery's own pauses between its tries grow to half a minute.

While the server is down, the heartbeats' thread calls it several times a second. A consumer that reconnects waits for
the word of that thread instead of sleeping. Meanwhile nobody runs the event loop, so the ends of tasks in pool
processes are read here: the heartbeats' thread tells the server these ends before the connection of the event loop is
back, which takes a second and more.
"""

from collections.abc import Callable
from functools import cache
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Protocol

import redis
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from celery.worker.state import maybe_shutdown
from kombu.exceptions import OperationalError

from ..broker.failover import is_transient, refuses_writes
from ..leases.member import Member
from ..log_limit import limited_logger
from ..publishing.app_config import has_own_strategy
from ..publishing.message import Revoke
from ..schema import values
from . import request_end
from .buffers import StrategyBuffers, requeue_buffered
from .cohort_member import CohortMembers
from .pool import read_results

if TYPE_CHECKING:
    from kombu.utils.limits import TokenBucket

    from .job_feed import PrebuiltRequests
    from .rate_limits import RateLimits

logger = limited_logger(__name__)

#: Time, s, that a connection lasts at least if the server is fit; first pause after one that did not, and longest, s.
_SHORT_S = 0.5
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class _Wakes(Protocol):
    def wake(self) -> bool: ...


class AffinityBlueprint(Consumer.Blueprint):
    """Connects again after an error of a server in a state that passes, or that takes no writes for now.

    Not all connections on its way are of this transport: a result backend may be on the same server. A server that
    takes connections and refuses all else would have Celery connect at once, again and again: the pauses grow.
    """

    _pause_s = _PAUSE_S

    def start(self, parent: Consumer) -> None:
        began_s = monotonic()
        try:
            super().start(parent)
        except (redis.ConnectionError, redis.ResponseError, OperationalError) as exc:
            is_short = monotonic() - began_s < _SHORT_S
            self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s) if is_short else _PAUSE_S
            if is_short:
                sleep(self._pause_s)
            # Of a publish on the way up, such as mingle's, kombu says that it was in vain: Celery would end for that.
            is_kombus = isinstance(exc, OperationalError) and parent.connection is not None
            if isinstance(exc, redis.ConnectionError) or not (is_kombus or is_transient(exc) or refuses_writes(exc)):
                raise
            raise redis.ConnectionError(str(exc)) from exc


class AffinityConsumer(Consumer):
    """Passes on what the parts of a worker have to know. A part is None until the worker has joined for the first time.

    *on_task_request* starts a task. Celery, and a user's own class, get `affinity_start` instead.
    """

    #: Called with the revokes of each broadcast; the bootstep sets it.
    affinity_on_revoked: Callable[[Revoke], None] | None = None
    affinity_limits: "RateLimits | None" = None
    affinity_reconnecting: "ReconnectingConsumer | None" = None
    #: Names of the tasks with a custom strategy, which can buffer requests.
    affinity_own_strategies: frozenset[str] = frozenset()
    #: What wakes the event loop.
    affinity_host: _Wakes | None = None

    def __init__(self, on_task_request: Callable[[Request], Any], *args: Any, **kwargs: Any) -> None:
        self.affinity_made_ahead: list[PrebuiltRequests] = []
        self._affinity_process = on_task_request
        super().__init__(self.affinity_start, *args, **kwargs)

    # -- connections

    def connection_for_read(self, *args: Any, **kwargs: Any) -> Any:
        """Return a connection that hears of revokes. With green pools remote control has a connection of its own."""
        connection = super().connection_for_read(*args, **kwargs)
        connection.transport.on_revoked = self.affinity_on_revoked
        return connection

    def ensure_connected(self, conn: Any) -> Any:
        """Connect *conn*, and return it: the next try is as soon as the server answers the worker's heartbeats."""
        if self.affinity_reconnecting is None:
            return super().ensure_connected(conn)
        return self.affinity_reconnecting.connected(conn, super().ensure_connected)

    # -- tasks

    def update_strategies(self) -> None:
        """Have the requests of all tasks tell their end, tasks included that a reload of modules brings."""
        for task in self.app.tasks.values():
            request_end.install_task_end(task)
        super().update_strategies()
        tasks = self.app.tasks
        self.affinity_own_strategies = frozenset(name for name in tasks if has_own_strategy(tasks[name]))
        buffers = StrategyBuffers(self)
        for name in self.affinity_own_strategies:
            self.strategies[name] = buffers.noting(tasks[name], self.strategies[name])

    def affinity_start(self, request: Request) -> Any:
        """Start the task of *request*, unless the request is made ahead, or no slot is left for it."""
        if self._is_made_ahead(request):
            return None
        if self.affinity_limits is None:
            return self._affinity_process(request)
        if request.name in self.affinity_own_strategies:
            requeue_buffered(request)
            return self._affinity_process(request)  # if it were returned, the strategy would buffer it again
        return self.affinity_limits.start_if_there_is_room(request, self._affinity_process)

    def _is_made_ahead(self, request: Request) -> bool:
        return any(each.keeps(request) for each in self.affinity_made_ahead)

    # -- rate limits: Celery's timer calls `_schedule_bucket_request` when a token comes.

    def _limit_task(self, request: Request, bucket: "TokenBucket", tokens: int) -> Any:
        if self._is_made_ahead(request):
            return None
        if request.name in self.affinity_own_strategies:
            requeue_buffered(request)
        return super()._limit_task(request, bucket, tokens)

    def _schedule_bucket_request(self, bucket: "TokenBucket") -> None:
        if self.affinity_limits is None:
            super()._schedule_bucket_request(bucket)
        else:
            self.affinity_limits.start_what_may(bucket, super()._schedule_bucket_request)

    def reset_rate_limits(self) -> None:
        """Set the limits anew, for the jobs that wait as well."""
        if self.affinity_limits is None:
            super().reset_rate_limits()
        else:
            self.affinity_limits.change(super().reset_rate_limits)

    # -- the event loop

    def call_soon(self, p: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Have the event loop call *p*, and iterate for it: kombu before 5.7 lets an ack of another thread wait.

        An error of *p* does not end the loop: a command of remote control may ask for the impossible.
        """
        promise = super().call_soon(_surviving(p), *args, **kwargs)
        if self.affinity_host is not None:
            self.affinity_host.wake()
        return promise


def _surviving(callback: Any) -> Any:
    """Return a function that calls *callback* and logs its errors, except the loss of a connection."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return callback(*args, **kwargs)
        except values.LOST:
            raise
        except Exception:
            logger.exception("A call in the event loop failed: %r", callback)
            return None

    return call


@cache
def derive_consumer(base: type[Consumer]) -> type[Consumer]:
    """Return a class of consumers that derives from *base*, Celery's own or a user's, and has its name."""
    if issubclass(base, AffinityConsumer):
        return base
    blueprint = type(base.Blueprint.__name__, (AffinityBlueprint, base.Blueprint), {})
    return type(base.__name__, (AffinityConsumer, base), {"Blueprint": blueprint, "__module__": base.__module__})


#: Interval, s, at which a waiting consumer looks for the word of the heartbeats' thread, and for ends of tasks.
_POLL_S = 0.05

#: Factor of the pauses that kombu gets: kombu would sleep through the real ones, so they are waited for here.
_SMALLER = 1e-6


class ReconnectingConsumer:
    """Makes *consumer* wait for its server by the word of the heartbeats' thread of *members*."""

    def __init__(self, consumer: "Consumer", members: Member | CohortMembers) -> None:
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
        self._known = self._members.reporter.returns
        try:
            return connect(connection)
        finally:
            del connection.ensure_connection

    def _wait(self, pause_s: float) -> None:
        """Wait *pause_s*, or until the server is back; not at all if the server came back during the last try."""
        until_s = monotonic() + pause_s
        self._members.ask()
        while self._members.reporter.returns == self._known and monotonic() < until_s:
            maybe_shutdown()
            self._read_ends()
            sleep(_POLL_S)
        self._known = self._members.reporter.returns

    def _read_ends(self) -> None:
        try:
            read_results(self._consumer.pool)
        except Exception:
            logger.exception("The ends of tasks cannot be read during the reconnect: they are noticed after it")
