"""Celery's consumer in a worker of the fleet: derived from the class that the setting `worker_consumer` names.

It reconnects as soon as the server answers; Celery's own pauses between attempts grow to half a minute.
"""

from collections.abc import Callable
from functools import cache
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import redis
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from celery.worker.state import maybe_shutdown
from kombu.exceptions import OperationalError

from ..broker.failover import LOST, is_transient, refuses_writes
from ..log_limit import limited_logger
from ..publishing.app_config import has_own_strategy
from ..publishing.message import Revoke
from . import request_end
from .buffers import recording_buffered, requeue_buffered
from .pool import read_results

if TYPE_CHECKING:
    from kombu.utils.limits import TokenBucket

    from .cohort_member import CohortMembers
    from .job_feed import PrebuiltRequests
    from .rate_limits import RateLimits

logger = limited_logger(__name__)
#: Minimum seconds that a connection to a healthy server lasts. First and maximum seconds to pause after a shorter one.
_MIN_CONNECTION_S = 0.5
_PAUSE_S = 0.05
_MAX_PAUSE_S = 1.0


class AffinityBlueprint(Consumer.Blueprint):
    """Reconnects after a transient server error, or while the server accepts no writes.

    The failed connection may not be of this transport: a result backend can be on the same server. The pauses grow,
    because Celery would reconnect in a tight loop if a server accepted connections and refused everything else.
    """

    _pause_s = _PAUSE_S

    def start(self, parent: Consumer) -> None:
        began_s = monotonic()
        try:
            super().start(parent)
        except (redis.ConnectionError, redis.ResponseError, OperationalError) as exc:
            is_short = monotonic() - began_s < _MIN_CONNECTION_S
            self._pause_s = min(_MAX_PAUSE_S, 2 * self._pause_s) if is_short else _PAUSE_S
            if is_short:
                sleep(self._pause_s)
            # kombu raises OperationalError for a failed publish during startup, such as mingle's. Celery would exit.
            is_from_kombu = isinstance(exc, OperationalError) and parent.connection is not None
            if isinstance(exc, redis.ConnectionError) or not (
                is_from_kombu or is_transient(exc) or refuses_writes(exc)
            ):
                raise
            raise redis.ConnectionError(str(exc)) from exc


class AffinityConsumer(Consumer):
    """Dispatches calls to the components of a worker. They are None until the worker has joined for the first time.

    *on_task_request* starts a task. Celery, or a custom base class, gets `affinity_start` instead.
    """

    #: Called with the revokes of each broadcast; the bootstep sets it.
    affinity_on_revoked: Callable[[Revoke], None] | None = None
    affinity_limits: "RateLimits | None" = None
    affinity_reconnecting: "ReconnectingConsumer | None" = None
    #: Names of the tasks with a custom strategy, which can buffer requests.
    affinity_own_strategies: frozenset[str] = frozenset()
    affinity_members: "CohortMembers | None" = None

    def __init__(self, on_task_request: Callable[[Request], Any], *args: Any, **kwargs: Any) -> None:
        self.affinity_made_ahead: list[PrebuiltRequests] = []
        self._affinity_start_task = on_task_request
        super().__init__(self.affinity_start, *args, **kwargs)

    def connection_for_read(self, *args: Any, **kwargs: Any) -> Any:
        """Return a connection that receives revokes. With green pools, remote control has a separate connection."""
        connection = super().connection_for_read(*args, **kwargs)
        connection.transport.on_revoked = self.affinity_on_revoked
        return connection

    def ensure_connected(self, conn: Any) -> Any:
        """Connect *conn* as soon as the server answers the worker's heartbeats, and return it."""
        if self.affinity_reconnecting is None:
            return super().ensure_connected(conn)
        return self.affinity_reconnecting.connected(conn, super().ensure_connected)

    def update_strategies(self) -> None:
        """Make the requests of all tasks report their end, including tasks added when modules are reloaded."""
        for task in self.app.tasks.values():
            request_end.install_task_end(task)
        super().update_strategies()
        tasks = self.app.tasks
        self.affinity_own_strategies = frozenset(name for name in tasks if has_own_strategy(tasks[name]))
        for name in self.affinity_own_strategies:
            self.strategies[name] = recording_buffered(self, tasks[name], self.strategies[name])

    def affinity_start(self, request: Request) -> Any:
        """Start the task of *request*, unless the request is being prebuilt or there is no free slot."""
        if self._is_prebuilt(request):
            return None
        if self.affinity_limits is None:
            return self._affinity_start_task(request)
        if request.name in self.affinity_own_strategies:
            requeue_buffered(request)
            return self._affinity_start_task(request)  # if it were returned, the strategy would buffer it again
        return self.affinity_limits.start_if_there_is_room(request, self._affinity_start_task)

    def _is_prebuilt(self, request: Request) -> bool:
        return any(requests.keeps(request) for requests in self.affinity_made_ahead)

    # Celery's timer calls `_schedule_bucket_request` when a rate token becomes available.
    def _limit_task(self, request: Request, bucket: "TokenBucket", tokens: int) -> Any:
        if self._is_prebuilt(request):
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
        """Set the limits again, also for the waiting jobs."""
        if self.affinity_limits is None:
            super().reset_rate_limits()
        else:
            self.affinity_limits.change(super().reset_rate_limits)

    def call_soon(self, p: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make the event loop call *p*, and iterate soon: kombu before 5.7 delays acks of other threads.

        An error of *p* does not end the loop, because a remote control command may request something impossible.
        """
        promise = super().call_soon(_log_errors_of(p), *args, **kwargs)
        if self.affinity_members is not None:
            self.affinity_members.wake()
        return promise


def _log_errors_of(callback: Any) -> Any:
    """Return a function that calls *callback* and logs its errors, except a lost connection."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return callback(*args, **kwargs)
        except LOST:
            raise
        except Exception:
            logger.exception("A call in the event loop failed: %r", callback)
            return None

    return call


@cache
def derive_consumer(base: type[Consumer]) -> type[Consumer]:
    """Return a consumer class that derives from *base* and has its name."""
    if issubclass(base, AffinityConsumer):
        return base
    blueprint = type(base.Blueprint.__name__, (AffinityBlueprint, base.Blueprint), {})
    return type(base.__name__, (AffinityConsumer, base), {"Blueprint": blueprint, "__module__": base.__module__})


#: Seconds between two checks of a waiting consumer: for the heartbeat thread's signal, and for ended tasks.
_POLL_S = 0.05
#: Scales down the pauses passed to kombu. kombu would sleep through the real pauses, so they are waited for here.
_PAUSE_FACTOR = 1e-6


class ReconnectingConsumer:
    """Makes *consumer* reconnect as soon as the heartbeats of *members* reach the server again.

    While the server is down, the heartbeat thread calls it several times a second, and a reconnecting consumer waits
    for that thread. The event loop does not run in this time, so the ends of tasks in pool processes are read here. The
    heartbeat thread reports them before the event loop's connection is back, which takes a second or more.
    """

    def __init__(self, consumer: "Consumer", members: "CohortMembers") -> None:
        self._consumer = consumer
        self._members = members
        self._returns_seen = 0

    def connected(self, connection: Any, connect: Callable[[Any], Any]) -> Any:
        """Return *connection* after Celery's function *connect* has connected it."""
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
                pause_s = round(interval / _PAUSE_FACTOR, 3)
                errback(exc, pause_s)
                self._wait(pause_s)

            pauses = (pause_s * _PAUSE_FACTOR for pause_s in (interval_start, interval_step, interval_max))
            return ensure(waiting, max_retries, *pauses, **options)

        connection.ensure_connection = ensuring
        self._returns_seen = self._members.returns
        try:
            return connect(connection)
        finally:
            del connection.ensure_connection

    def _wait(self, pause_s: float) -> None:
        """Wait *pause_s*, or until the server is available again. Return if it recovered during the last attempt."""
        until_s = monotonic() + pause_s
        self._members.ask()
        while self._members.returns == self._returns_seen and monotonic() < until_s:
            maybe_shutdown()
            self._read_ends()
            sleep(_POLL_S)
        self._returns_seen = self._members.returns

    def _read_ends(self) -> None:
        try:
            read_results(self._consumer.pool)
        except Exception:
            logger.exception("The ends of tasks cannot be read during the reconnect: they are read after it")
