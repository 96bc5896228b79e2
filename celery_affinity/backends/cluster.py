"""A client whose commands are repeated while a server is being replaced.

Results on a cluster: Celery's own backend for Redis, on connections that lead to the node with its keys.

All keys have one hash tag, so one node has all results: transactions, scripts, MGET and messages of ends mean there
what they mean on one server. The tag is not that of jobs, and in a cluster of three primaries leads to another node
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

#: Calls a function with no arguments until it raises no error of a lost connection.
Repeat = Callable[[Callable[[], Any]], Any]

#: Commands that count: one whose reply is lost may have counted already.
_COUNT = {"INCR", "INCRBY", "RPUSH"}

#: How often such a command is sent again that a node refused unread: once for each connection to a former owner.
_MOVES = 20


class RepeatedClient(redis.Redis):
    """Commands, and pipelines, that *repeat* calls; those that count only while nodes refuse them unread."""

    def __init__(self, repeat: Repeat, pool: redis.ConnectionPool) -> None:
        super().__init__(connection_pool=pool)
        self._repeat = repeat

    def execute_command(self, *args: Any, **options: Any) -> Any:
        execute = super().execute_command
        return self.repeated([args[0]], lambda: execute(*args, **options))  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        return _RepeatedPipeline(self, transaction, shard_hint)

    def repeated(self, names: Iterable[str], call: Callable[[], Any]) -> Any:
        """Call *call*, which sends the commands *names*, as often as it may be."""
        if _COUNT.isdisjoint(names):
            return self._repeat(call)
        for _ in range(_MOVES):
            try:
                return call()
            except SlotMovedError:
                continue  # the next connection leads to where the keys are
        return call()


class _RepeatedPipeline(Pipeline):
    def __init__(self, client: RepeatedClient, transaction: bool, shard_hint: Any) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    def execute(self, raise_on_error: bool = True) -> Any:
        commands = list(self.command_stack)
        execute = super().execute

        def call() -> Any:
            self.command_stack = list(commands)  # which an attempt forgets
            return execute(raise_on_error)

        return self._client.repeated([each[0][0] for each in commands], call)


#: Time, s, after which ends are looked for that no message came of: a node that is no longer the owner of the keys
#: hears of them through other nodes, and what is sent while these are apart is lost.
LOOK_S = 5.0

#: Longest wait, s, for a node that takes no connection, unless ``redis_socket_connect_timeout`` says otherwise.
CONNECT_TIMEOUT_S = 5.0

_CLUSTER = re.compile(r"^(?:redis|valkey)(s?)[+-]cluster://")


class ResultConsumer(StockConsumer):
    """Hears of the ends of tasks, and looks for them now and then."""

    _next_look = 0.0

    def drain_events(self, timeout: float | None = None) -> None:
        super().drain_events(timeout)
        now = monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        for meta in self._ends():
            self.on_state_change(meta, None)

    def _ends(self) -> list[Any]:
        keys = tuple(self.subscribed_to.copy())  # other threads subscribe meanwhile
        found = map(self._decode_result, filter(None, self.backend.mget(keys))) if keys else ()
        return [meta for meta in found if meta["status"] in states.READY_STATES]


class ClusterBackend(RedisBackend):
    """``redis-cluster://one:6379;redis-cluster://two:6379`` or ``rediss-cluster://`` in ``result_backend``.

    The URLs are start nodes: each of them is asked for the others, and may be down. The first one's user, password and
    options are for all nodes. Further settings are those of Celery's backend for Redis.

    Each command is repeated by ``retry_policy`` of ``result_backend_transport_options``, for about 20 s by default: a
    node is replaced meanwhile.
    """

    ResultConsumer = ResultConsumer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._repeating = threading.local()
        super().__init__(*args, **kwargs)

    def _add_global_keyprefix(self) -> None:
        super()._add_global_keyprefix()
        own = self.task_keyprefix.removesuffix(RedisBackend.task_keyprefix)  # of ``global_keyprefix``
        self.tag = f"{{{own}celery-result}}"
        for name in ("task_keyprefix", "group_keyprefix", "chord_keyprefix"):
            setattr(self, name, f"{self.tag}:{getattr(RedisBackend, name)}")

    def _params_from_url(self, url: str, defaults: dict[str, Any]) -> dict[str, Any]:
        each = [super(ClusterBackend, self)._params_from_url(_of_a_server(one), defaults) for one in url.split(";")]
        params = each[0]
        if params["db"]:
            raise ImproperlyConfigured(
                f"result_backend of a cluster must have no database, or 0, got: {urls.mask_url(url)!r}"
            )
        with_tls = issubclass(params.get("connection_class", redis.Connection), redis.SSLConnection)
        if with_tls:
            params.setdefault("ssl_cert_reqs", "required")  # as for the broker
            verifies = str(params["ssl_cert_reqs"]).lower().removeprefix("cert_") not in ("none", "0")
            params.setdefault("ssl_check_hostname", verifies)  # redis-py before 6 would not
        nodes = tuple(ClusterNode(one["host"] or "localhost", int(one["port"] or 6379)) for one in each)
        return {
            **params,
            "connection_class": surviving_failover(
                ClusterSSLConnection if with_tls else ClusterConnection, reads=False
            ),
            "cluster": cluster_of(nodes, self.tag),
            "socket_connect_timeout": params.get("socket_connect_timeout") or CONNECT_TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),  # `ensure` repeats
        }

    def _create_client(self, **params: Any) -> RepeatedClient:
        pool = self._get_pool(**params)
        # A subscription that is collected while its pool makes a connection gives back its own: redis-py before 6.2
        # waits for ever there, since a reconnect leaves a subscription behind.
        pool._lock = threading.RLock()
        return RepeatedClient(lambda call: self.ensure(call, ()), pool)

    def ensure(self, fun: Callable[..., Any], args: Any, **policy: Any) -> Any:
        """Return what *fun* returns. After a lost connection *fun* is called again, as *policy* says.

        A call of `ensure` inside *fun* repeats nothing by itself: the outer call repeats it.
        """
        if getattr(self._repeating, "is_under_way", False):
            return fun(*args)
        self._repeating.is_under_way = True
        try:
            return super().ensure(fun, args, **policy)
        finally:
            self._repeating.is_under_way = False

    def as_uri(self, include_password: bool = False) -> str:
        return str(self.url) if include_password else urls.mask_url(str(self.url))


def _of_a_server(url: str) -> str:
    """Return *url* as Celery reads that of one server."""
    return _CLUSTER.sub(r"redis\1://", url)
