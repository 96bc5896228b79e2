"""Celery's consumer, as that of a worker in a fleet: a class that derives from the one that `worker_consumer` names."""

from collections.abc import Callable
from functools import cache
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Protocol

import redis
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu.exceptions import OperationalError

from ..client.of_app import has_own_strategy
from ..client.revokes import Revoked
from ..log_limit import limited_logger
from ..server import received
from ..server.passing import passes, refuses_writes
from . import end_of_task
from .buffers import Buffers, take_back

if TYPE_CHECKING:
    from kombu.utils.limits import TokenBucket

    from .made_ahead import MadeAhead
    from .rate_limits import RateLimits
    from .reconnecting import Reconnecting

logger = limited_logger(__name__)

#: Time, s, that a connection lasts at least if the server is fit; first pause after one that did not, and longest, s.
_SHORT_S = 0.5
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class _Wakes(Protocol):
    def wake(self) -> bool: ...


class FleetBlueprint(Consumer.Blueprint):
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
            if isinstance(exc, redis.ConnectionError) or not (is_kombus or passes(exc) or refuses_writes(exc)):
                raise
            raise redis.ConnectionError(str(exc)) from exc


class FleetConsumer(Consumer):
    """Passes on what the parts of a worker have to know. A part is None until the worker has joined for the first time.

    *on_task_request* starts a task. Celery, and a user's own class, get `affinity_start` instead.
    """

    #: Called with the revokes of each broadcast; the bootstep sets it.
    affinity_on_revoked: Callable[[Revoked], None] | None = None
    affinity_limits: "RateLimits | None" = None
    affinity_reconnecting: "Reconnecting | None" = None
    #: Names of the tasks with a strategy of their own, which may buffer requests.
    affinity_own_strategies: frozenset[str] = frozenset()
    #: What wakes the event loop.
    affinity_host: _Wakes | None = None

    def __init__(self, on_task_request: Callable[[Request], Any], *args: Any, **kwargs: Any) -> None:
        self.affinity_made_ahead: list[MadeAhead] = []
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
            end_of_task.install(task)
        super().update_strategies()
        tasks = self.app.tasks
        self.affinity_own_strategies = frozenset(name for name in tasks if has_own_strategy(tasks[name]))
        buffers = Buffers(self)
        for name in self.affinity_own_strategies:
            self.strategies[name] = buffers.noting(tasks[name], self.strategies[name])

    def affinity_start(self, request: Request) -> Any:
        """Start the task of *request*, unless the request is made ahead, or no slot is left for it."""
        if self._is_made_ahead(request):
            return None
        if self.affinity_limits is None:
            return self._affinity_process(request)
        if request.name in self.affinity_own_strategies:
            take_back(request)
            return self._affinity_process(request)  # given back, it would come into the buffer once more
        return self.affinity_limits.start_if_there_is_room(request, self._affinity_process)

    def _is_made_ahead(self, request: Request) -> bool:
        return any(each.keeps(request) for each in self.affinity_made_ahead)

    # -- rate limits: Celery's timer calls `_schedule_bucket_request` when a token comes.

    def _limit_task(self, request: Request, bucket: "TokenBucket", tokens: int) -> Any:
        if self._is_made_ahead(request):
            return None
        if request.name in self.affinity_own_strategies:
            take_back(request)
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
        except received.LOST:
            raise
        except Exception:
            logger.exception("A call in the event loop failed: %r", callback)
            return None

    return call


@cache
def derived(base: type[Consumer]) -> type[Consumer]:
    """Return a class of consumers that derives from *base*, Celery's own or a user's, and has its name."""
    if issubclass(base, FleetConsumer):
        return base
    blueprint = type(base.Blueprint.__name__, (FleetBlueprint, base.Blueprint), {})
    return type(base.__name__, (FleetConsumer, base), {"Blueprint": blueprint, "__module__": base.__module__})
