"""Results on a cluster: Celery's Redis backend, with connections that find the node that has its keys.

All keys have one hash tag, so one node has all results. Transactions, scripts, MGET and result messages therefore work
as on a single server. The tag differs from the jobs' tag. In a cluster of three primaries, it belongs to another node
than the namespace ``affinity``.
"""

import re
import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

import redis
from celery import states
from celery.backends.redis import RedisBackend
from celery.backends.redis import ResultConsumer as StockConsumer
from celery.exceptions import ImproperlyConfigured
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.retry import Retry

from ..broker.client import SlotMovedError
from ..broker.cluster import ClusterConnection, ClusterNode, ClusterSSLConnection, cluster_of
from ..broker.failover import surviving_failover
from ..transport import urls

#: Calls a function without arguments until it raises no error of a lost connection.
Repeat = Callable[[Callable[[], Any]], Any]
#: Counting commands: if such a command is repeated after a lost reply, it could count twice.
_COUNTING_COMMANDS = {"INCR", "INCRBY", "RPUSH"}
#: Maximum attempts of such a command that nodes refuse before executing it: one per connection to a former owner.
_MAX_MOVES = 20


class RepeatedClient(redis.Redis):
    """Repeats commands and pipelines with *repeat*, but counting commands only if nodes refuse to execute them."""

    def __init__(self, repeat: Repeat, pool: redis.ConnectionPool) -> None:
        super().__init__(connection_pool=pool)
        self._repeat = repeat

    def execute_command(self, *args: Any, **options: Any) -> Any:
        execute = super().execute_command
        return self.repeated([args[0]], lambda: execute(*args, **options))  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        return _RepeatedPipeline(self, transaction, shard_hint)

    def repeated(self, names: Iterable[str], call: Callable[[], Any]) -> Any:
        """Call *call*, which sends the commands *names*, and repeat it as often as these commands allow."""
        if _COUNTING_COMMANDS.isdisjoint(names):
            return self._repeat(call)
        for _ in range(_MAX_MOVES):
            try:
                return call()
            except SlotMovedError:
                continue  # the next connection leads to the keys' owner
        return call()


class _RepeatedPipeline(Pipeline):
    def __init__(self, client: RepeatedClient, transaction: bool, shard_hint: Any) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    def execute(self, raise_on_error: bool = True) -> Any:
        commands = list(self.command_stack)
        execute = super().execute

        def call() -> Any:
            self.command_stack = list(commands)  # an attempt deletes them
            return execute(raise_on_error)

        return self._client.repeated([command[0][0] for command in commands], call)


#: Seconds between two searches for ends without a message. A former owner of the keys receives messages through other
#: nodes, and messages are lost while the nodes are disconnected.
LOOK_S = 5.0
#: Maximum seconds to wait for a connection to a node, unless ``redis_socket_connect_timeout`` is set.
CONNECT_TIMEOUT_S = 5.0

_CLUSTER_SCHEME = re.compile(r"^(?:redis|valkey)(s?)[+-]cluster://")


class ResultConsumer(StockConsumer):
    """Receives messages about ended tasks, and also searches for ended tasks periodically."""

    _next_check_s = 0.0

    def drain_events(self, timeout: float | None = None) -> None:
        super().drain_events(timeout)
        now_s = monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + LOOK_S
        keys = tuple(self.subscribed_to.copy())  # other threads subscribe concurrently
        results = map(self._decode_result, filter(None, self.backend.mget(keys))) if keys else ()
        for meta in [meta for meta in results if meta["status"] in states.READY_STATES]:
            self.on_state_change(meta, None)


class ClusterBackend(RedisBackend):
    """``redis-cluster://one:6379;redis-cluster://two:6379`` or ``rediss-cluster://`` in ``result_backend``.

    The URLs are start nodes. Each is queried for the other nodes, and any of them may be down. The first URL's user,
    password and options apply to all nodes. All other settings of Celery's Redis backend apply.

    Each command is repeated according to ``retry_policy`` in ``result_backend_transport_options``, by default for about
    20 s, which is enough to replace a node.
    """

    ResultConsumer = ResultConsumer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._repeating = threading.local()
        super().__init__(*args, **kwargs)

    def _add_global_keyprefix(self) -> None:
        super()._add_global_keyprefix()
        prefix = self.task_keyprefix.removesuffix(RedisBackend.task_keyprefix)  # from ``global_keyprefix``
        self.tag = f"{{{prefix}celery-result}}"
        for name in ("task_keyprefix", "group_keyprefix", "chord_keyprefix"):
            setattr(self, name, f"{self.tag}:{getattr(RedisBackend, name)}")

    def _params_from_url(self, url: str, defaults: dict[str, Any]) -> dict[str, Any]:
        params_by_node = [
            super(ClusterBackend, self)._params_from_url(_CLUSTER_SCHEME.sub(r"redis\1://", node_url), defaults)
            for node_url in url.split(";")
        ]
        params = params_by_node[0]
        if params["db"]:
            raise ImproperlyConfigured(
                f"result_backend of a cluster must have no database, or 0, got: {urls.mask_url(url)!r}"
            )
        with_tls = issubclass(params.get("connection_class", redis.Connection), redis.SSLConnection)
        if with_tls:
            params.setdefault("ssl_cert_reqs", "required")  # as for the broker
            verifies = str(params["ssl_cert_reqs"]).lower().removeprefix("cert_") not in ("none", "0")
            params.setdefault("ssl_check_hostname", verifies)  # redis-py before 6 does not
        nodes = tuple(ClusterNode(node["host"] or "localhost", int(node["port"] or 6379)) for node in params_by_node)
        return {
            **params,
            "connection_class": surviving_failover(
                ClusterSSLConnection if with_tls else ClusterConnection, reads=False
            ),
            "cluster": cluster_of(nodes, self.tag),
            "socket_connect_timeout": params.get("socket_connect_timeout") or CONNECT_TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),  # `ensure` repeats instead
        }

    def _create_client(self, **params: Any) -> RepeatedClient:
        pool = self._get_pool(**params)
        # A subscription that is garbage-collected while its pool creates a connection returns its own connection. In
        # redis-py before 6.2 that waits forever, because a reconnect leaves a subscription behind.
        pool._lock = threading.RLock()
        return RepeatedClient(lambda call: self.ensure(call, ()), pool)

    def ensure(self, fun: Callable[..., Any], args: Any, **policy: Any) -> Any:
        """Return the result of *fun*, repeated after lost connections by *policy*. Nested calls do not repeat."""
        if getattr(self._repeating, "is_under_way", False):
            return fun(*args)
        self._repeating.is_under_way = True
        try:
            return super().ensure(fun, args, **policy)
        finally:
            self._repeating.is_under_way = False

    def as_uri(self, include_password: bool = False) -> str:
        return str(self.url) if include_password else urls.mask_url(str(self.url))
