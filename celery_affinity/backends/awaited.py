"""Await results in asyncio programs, on Celery's Redis result backends: one server, Sentinel and cluster.

All waiters of one event loop and one result backend share a `ResultListener`: a task with one connection for
subscriptions and another one for reading results. A waiter has neither a thread nor a connection. A listener without
waiters ends after `IDLE_S`.

No result is missed: the server confirms a subscription before the listener reads the result, and a lost connection is
replaced by a new one, whose subscriptions are confirmed and read in the same way. The listener also reads all missing
results every `LOOK_S`, in case a message was lost between two nodes of a cluster.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context
from functools import partial
from typing import Any
from weakref import WeakSet

import redis
from celery import Celery, states
from celery.backends.redis import RedisBackend, SentinelBackend
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, EagerResult, ResultBase, ResultSet, assert_will_not_block
from redis import asyncio as aioredis
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError

from ..broker.cluster import ClusterNode, ClusterNodes
from ..broker.failover import LOST, is_transient
from ..errors import SettingError
from ..log_limit import limited_logger
from ..publishing.app_config import replaces

logger = limited_logger(__name__)

#: Seconds between two reads of all missing results.
LOOK_S = 5.0
#: Maximum seconds to wait for a reply. ``redis_socket_timeout`` (120 s) detects a dead connection too late.
REPLY_TIMEOUT_S = 10.0
#: Seconds until a listener without waiters closes its connections.
IDLE_S = 60.0
#: Minimum seconds between two attempts to connect.
_MIN_PAUSE_S = 0.05
#: Maximum number of keys in one command.
_BATCH = 500

#: Parameters of Celery's connections that a listener does not use. It opens two connections, and detects a dead one by
#: `LOOK_S`; a health check would read replies that belong to other readers.
_UNUSED = {"connection_class", "max_connections", "health_check_interval", "retry", "retry_on_timeout", "cluster"}

_Ended = asyncio.Future[dict[str, Any]]


class ResultTimeoutError(CeleryTimeoutError, TimeoutError):
    """The result did not arrive in time: asyncio's TimeoutError, and the TimeoutError of Celery's `get`."""


async def aresult(result: ResultBase, timeout: float | None = None, propagate: bool = True) -> Any:
    """Wait for *result* without blocking the event loop, and return its value. For asyncio programs.

    The parameters have the meaning of `AsyncResult.get`. A group's result is a list in the order of its calls.

    - *timeout*: maximum seconds to wait. Then TimeoutError is raised, both asyncio's and Celery's. The task continues.
    - *propagate*: raise the task's error, or the error of a failed parent in a chain; False returns the task's error.

    Cancellation ends the wait and not the task. Within a task, it raises RuntimeError, like `get`. It raises
    SettingError for a result backend other than Redis, and redis-py's errors if the backend does not respond during
    all attempts of ``retry_policy`` in ``result_backend_transport_options`` (default: 20 s).
    """
    assert_will_not_block()
    if isinstance(result, EagerResult):
        return result.get(propagate=propagate)
    missing = [leaf for leaf in _leaves(result) if not _has_value(leaf)]
    parents = list(_parents(result)) if propagate and isinstance(result, AsyncResult) else []
    for leaf in [*parents, *_leaves(result)]:
        if propagate and leaf._cache:
            leaf.maybe_throw()
    if missing:
        failed = await _first_failure(missing, [leaf for leaf in parents if not _has_value(leaf)], timeout, propagate)
        if failed is not None:
            failed.maybe_throw()
    return _value(result)


def _leaves(result: ResultBase) -> Iterator[AsyncResult]:
    """Yield the results of single tasks in *result*, which can be a group of groups."""
    if isinstance(result, ResultSet):
        for child in result.results:
            yield from _leaves(child)
    else:
        yield result


def _parents(result: AsyncResult) -> Iterator[AsyncResult]:
    parent = result.parent
    while parent:
        yield from _leaves(parent)
        parent = parent.parent


def _has_value(leaf: AsyncResult) -> bool:
    return bool(leaf.ignored or leaf._cache)


def _value(result: ResultBase) -> Any:
    if isinstance(result, ResultSet):
        return [_value(child) for child in result.results]
    return None if result.ignored else result.maybe_throw(propagate=False)


async def _first_failure(
    missing: list[AsyncResult], parents: list[AsyncResult], timeout: float | None, propagate: bool
) -> AsyncResult | None:
    """Wait until all *missing* results have values, or, with *propagate*, until one of them or of *parents* failed.

    Return the failed one.
    """
    wait = _Wait(len(missing), propagate)
    waiters = []
    try:
        for leaf, is_parent in [*((leaf, False) for leaf in missing), *((leaf, True) for leaf in parents)]:
            listener = _listener_of(leaf.backend)
            key, ended = listener.add(leaf.id)
            waiters.append((listener, key, ended))
            ended.add_done_callback(partial(wait.collect, leaf, is_parent))
        await asyncio.wait([wait.outcome], timeout=timeout)
    finally:
        for listener, key, ended in waiters:
            listener.discard(key, ended)
    if not wait.outcome.done():
        raise ResultTimeoutError(f"The result of {missing[0].id} did not arrive within {timeout} s.")
    return wait.outcome.result()


class _Wait:
    """One call of `aresult`. Its *outcome* is the first failed result, or None."""

    def __init__(self, remaining: int, propagate: bool) -> None:
        self.outcome: asyncio.Future[AsyncResult | None] = asyncio.get_running_loop().create_future()
        self._remaining = remaining
        self._propagate = propagate

    def collect(self, leaf: AsyncResult, is_parent: bool, ended: _Ended) -> None:
        """Store the value of *leaf* in its result object. Set the outcome if it was the last one, or failed."""
        if ended.cancelled():
            self.outcome.cancel()
            return
        error = ended.exception()  # asyncio logs an error that is never retrieved
        if self.outcome.done():
            return
        if error is not None:
            self.outcome.set_exception(error)
            return
        meta = ended.result()
        try:
            if not leaf._cache:
                leaf._maybe_set_cache(meta)  # can call the user's callbacks
        except Exception as exc:
            self.outcome.set_exception(exc)
            return
        self._remaining -= not is_parent
        if self._propagate and meta["status"] in states.PROPAGATE_STATES:
            self.outcome.set_result(leaf)
        elif not self._remaining:
            self.outcome.set_result(None)


class ResultListener:
    """Receives the ends of tasks from the result backend of *app*, for all waiters in one event loop."""

    def __init__(self, backend: RedisBackend, closed: Callable[[], object]) -> None:
        self._backend = backend
        self._closed = closed
        #: Redis key -> waiters for that result.
        self._waiters: dict[bytes, set[_Ended]] = {}
        #: Keys whose first waiter came, or whose last one left, since the last commands.
        self._changed: set[bytes] = set()
        #: Keys whose subscription the server has confirmed, and which must be read now.
        self._confirmed: set[bytes] = set()
        self._wakeup = asyncio.Event()
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    def add(self, task_id: str) -> tuple[bytes, _Ended]:
        """Return the key of a task's result, and a future of its decoded result."""
        key: bytes = self._backend.get_key_for_task(task_id)
        loop = asyncio.get_running_loop()
        ended: _Ended = loop.create_future()
        self._waiters.setdefault(key, set()).add(ended)
        self._note_change(key)
        if self._task is None or self._task.done():
            # The context of the first waiter, such as its trace, does not apply to the others.
            self._task = loop.create_task(self._run(), name="celery_affinity results", context=Context())
        return key, ended

    def discard(self, key: bytes, ended: _Ended) -> None:
        """Stop waiting. *ended* can have its result already."""
        ended.cancel()
        waiters = self._waiters.get(key)
        if waiters is not None:
            waiters.discard(ended)
            if not waiters:
                del self._waiters[key]
                self._note_change(key)

    def _note_change(self, key: bytes) -> None:
        self._changed.add(key)
        self._wakeup.set()

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._listen()
                except Exception as exc:
                    pause_s = self._pause_after(exc)
                    if pause_s is None or not self._waiters:
                        self._fail(exc)
                        return
                    logger.warning("The connection to the result backend was lost: %s. Trying again.", exc)
                    await asyncio.sleep(pause_s)
                else:
                    if not self._waiters:
                        return
        finally:
            self._closed()
            for ended in [ended for waiters in self._waiters.values() for ended in waiters]:
                ended.cancel()  # the event loop is closing

    def _pause_after(self, exc: Exception) -> float | None:
        """Return the seconds until the next attempt, by Celery's ``retry_policy``, or None if there is none."""
        is_refused = isinstance(exc, (AuthenticationError, AuthorizationError))
        if is_refused or not (isinstance(exc, LOST) or is_transient(exc)):
            return None
        policy = self._backend.retry_policy
        max_retries = policy.get("max_retries")
        if max_retries is not None and self._failures >= max_retries:
            return None
        pause_s = policy.get("interval_start", 0) + policy.get("interval_step", 1) * self._failures
        max_pause_s = policy.get("interval_max", 1)
        self._failures += 1
        return max(_MIN_PAUSE_S, float(pause_s if max_pause_s is None else min(pause_s, max_pause_s)))

    def _fail(self, exc: Exception) -> None:
        for ended in [ended for waiters in self._waiters.values() for ended in waiters]:
            if not ended.done():
                ended.set_exception(exc)
        self._waiters.clear()

    async def _listen(self) -> None:
        """Subscribe, and read results, until waiters are missing for `IDLE_S`. Raises errors of connections."""
        async with _client_of(self._backend) as client, client.pubsub() as subscription:
            subscribed: set[bytes] = set()
            self._confirmed.clear()
            self._changed |= self._waiters.keys()
            await subscription.connect()
            receiving = asyncio.ensure_future(self._receive(subscription))
            try:
                await self._follow_waiters(client, subscription, subscribed, receiving)
            finally:
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)

    async def _follow_waiters(
        self, client: Any, subscription: Any, subscribed: set[bytes], receiving: asyncio.Future[None]
    ) -> None:
        """Subscribe for new waiters, unsubscribe for waiters that left, and read results."""
        loop = asyncio.get_running_loop()
        next_look_s, idle_since_s = loop.time() + LOOK_S, loop.time()
        while True:
            self._wakeup.clear()
            changed, self._changed = self._changed, set()
            for keys in _batches(key for key in changed - subscribed if key in self._waiters):
                subscribed.update(keys)
                await subscription.subscribe(*keys)
            for keys in _batches(key for key in changed & subscribed if key not in self._waiters):
                subscribed.difference_update(keys)
                await subscription.unsubscribe(*keys)
            if loop.time() >= next_look_s:
                next_look_s = loop.time() + LOOK_S
                self._confirmed |= self._waiters.keys()
            confirmed, self._confirmed = self._confirmed, set()
            for keys in _batches(key for key in confirmed if key in self._waiters):
                for key, payload in zip(keys, await client.mget(keys), strict=True):
                    self._deliver(key, payload)
                self._failures = 0
            if self._waiters:
                idle_since_s = loop.time()
            elif loop.time() - idle_since_s >= IDLE_S:
                return
            await self._sleep(next_look_s - loop.time(), receiving)

    async def _sleep(self, max_s: float, receiving: asyncio.Future[None]) -> None:
        """Wait for a change, at most *max_s* seconds. Raises the error of *receiving*."""
        waking: asyncio.Future[Any] = asyncio.ensure_future(self._wakeup.wait())
        try:
            await asyncio.wait({waking, receiving}, timeout=max(max_s, 0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        if receiving.done():
            receiving.result()

    async def _receive(self, subscription: Any) -> None:
        while True:
            message = await subscription.get_message(timeout=LOOK_S)
            if message is None:
                continue
            if message["type"] == "subscribe":
                self._confirmed.add(message["channel"])
                self._wakeup.set()
            elif message["type"] == "message":
                self._deliver(message["channel"], message["data"])

    def _deliver(self, key: bytes, payload: bytes | None) -> None:
        """Give a result to its waiters, unless *payload* is the state of a task that has not ended."""
        waiters = self._waiters.get(key)
        if not waiters or not payload:
            return
        try:
            meta = self._backend.decode_result(payload)
            if meta["status"] not in states.READY_STATES:
                return
        except Exception as exc:
            for ended in waiters:
                ended.set_exception(exc)
        else:
            for ended in waiters:
                ended.set_result(dict(meta))  # each result object changes its dict
        del self._waiters[key]
        self._note_change(key)


def _batches(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    ordered = list(keys)
    return (ordered[start : start + _BATCH] for start in range(0, len(ordered), _BATCH))


# -- connections


class _NoRetry(Retry):
    """Never reconnects within a command: a sender and a receiver that both reconnect would read the same replies."""

    async def call_with_retry(self, do: Callable[[], Awaitable[Any]], *args: Any, **options: Any) -> Any:
        return await do()


@asynccontextmanager
async def _client_of(backend: RedisBackend) -> AsyncIterator[Any]:
    """Yield an asyncio client with the parameters of *backend*'s connections."""
    params = {name: value for name, value in backend.connparams.items() if name not in _UNUSED}
    params["socket_timeout"] = min(params.get("socket_timeout") or REPLY_TIMEOUT_S, REPLY_TIMEOUT_S)
    params["retry"] = _NoRetry(NoBackoff(), 0)
    params["decode_responses"] = False
    if isinstance(params.get("ssl_cert_reqs"), ssl.VerifyMode):  # redis-py before 6 accepts only the name here
        params["ssl_cert_reqs"] = params["ssl_cert_reqs"].name.removeprefix("CERT_").lower()
    kind = backend.connparams.get("connection_class", redis.Connection)
    has_tls = issubclass(kind, redis.SSLConnection)
    cluster: ClusterNodes | None = backend.connparams.get("cluster")
    async with AsyncExitStack() as opened:
        if isinstance(backend, SentinelBackend):
            pool = _sentinel_pool(backend, params, has_tls, opened)
        else:
            plain: type = SSLConnection if has_tls else Connection
            if issubclass(kind, redis.UnixDomainSocketConnection):
                plain = UnixDomainSocketConnection
            if cluster is not None:
                owner = cluster.owner or await _find_owner(cluster, plain, params)
                params["host"], params["port"] = owner
            pool = ConnectionPool(connection_class=plain, **params)
        opened.push_async_callback(pool.disconnect)
        try:
            yield aioredis.Redis(connection_pool=pool)
        except Exception:
            if cluster is not None and cluster.owner is not None:
                cluster.doubt(cluster.owner)
            raise


def _sentinel_pool(
    backend: SentinelBackend, params: dict[str, Any], has_tls: bool, opened: AsyncExitStack
) -> ConnectionPool:
    """Return a pool of connections to the primary, which each new connection queries the sentinels for."""
    options = backend._transport_options
    hosts = [(node["host"], node["port"]) for node in params.pop("hosts")]
    sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
        hosts,
        min_other_sentinels=options.get("min_other_sentinels", 0),
        sentinel_kwargs={
            "socket_timeout": REPLY_TIMEOUT_S,
            "retry": params["retry"],
            **options.get("sentinel_kwargs", {}),
        },
        **params,
    )
    for client in sentinel.sentinels:
        opened.push_async_callback(client.aclose)
    tls = {"ssl": True} if has_tls else {}
    pool: ConnectionPool = sentinel.master_for(options.get("master_name"), **params, **tls).connection_pool
    return pool


async def _find_owner(cluster: ClusterNodes, kind: type, params: dict[str, Any]) -> ClusterNode:
    """Query the nodes until one names the owner of the results' slot. Raises ConnectionError if none does."""
    errors = []
    for node in cluster.nodes:
        connection = kind(**{**params, "host": node.host, "port": node.port, "db": 0})
        try:
            await connection.connect()
            await connection.send_command("CLUSTER", "SLOTS")
            cluster.learn(node, await connection.read_response())
            if cluster.owner is not None:
                return cluster.owner
        except (redis.RedisError, OSError) as exc:
            cluster.doubt(node)
            errors.append(f"{node}: {exc}")
        finally:
            await connection.disconnect()
    raise redis.ConnectionError("no node of the cluster says who has the results: " + "; ".join(errors))


# -- listeners of this process

#: (event loop, app, parameters of the backend) -> its listener. An app can have one backend object per thread. A forked
#: process has other event loops.
_listeners: dict[tuple[Any, ...], ResultListener] = {}

#: Apps with awaited results.
_apps: WeakSet[Celery] = WeakSet()


def _listener_of(backend: Any) -> ResultListener:
    """Return the listener of *backend* in the running event loop. Raises SettingError if it is not Redis."""
    if not isinstance(backend, RedisBackend):
        got = repr(backend.as_uri()) if getattr(backend, "url", None) else type(backend).__name__
        raise SettingError(
            "aresult needs a result_backend that begins with redis://, rediss://, socket://, sentinel://, "
            f"redis-cluster:// or rediss-cluster://, got: {got}"
        )
    _apps.add(backend.app)
    loop = asyncio.get_running_loop()
    for key in [key for key in tuple(_listeners) if key[0].is_closed()]:
        _listeners.pop(key, None)
    place = (backend.connparams.get(name) for name in ("host", "port", "db", "path"))
    key = (loop, backend.app, type(backend), backend.url, *place)
    listener = _listeners.get(key)
    if listener is None:
        listener = _listeners[key] = ResultListener(backend, partial(_listeners.pop, key, None))
    return listener


@replaces(RedisBackend, "on_task_call")
def _subscribe_at_get(original: Callable[..., None], /, backend: RedisBackend, producer: Any, task_id: str) -> None:
    """Do not subscribe at the publish of a call in an app that awaits results, because `get` also subscribes.

    Otherwise, the messages of all awaited results would fill a connection that no `get` reads.
    """
    if backend.app not in _apps:
        original(backend, producer, task_id)
