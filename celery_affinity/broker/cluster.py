"""Connections to a Redis Cluster: each connects to the node that owns one slot at that moment.

All keys of a fleet have one hash tag, so one node has all of them. A node that has lost the keys refuses each command
unread and names the new owner, to which the next connection leads.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import redis
from redis.crc import key_slot

from .client import SlotMovedError
from .failover import is_transient, parse_redirect


class ClusterNode(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class ClusterNodes:
    """A process's view of a cluster: the owner of *slot*, and the nodes to query for the owner, including *start*.

    Shared by threads without a lock: a concurrent change costs at most one extra query.
    """

    def __init__(self, start: Iterable[ClusterNode], slot: int) -> None:
        self.slot = slot
        self._start = tuple(start)
        self._discovered: tuple[ClusterNode, ...] = ()
        self.owner: ClusterNode | None = None

    @property
    def nodes(self) -> list[ClusterNode]:
        """All nodes to query, without duplicates: first the nodes that the cluster named last."""
        return list(dict.fromkeys((*self._discovered, *self._start)))

    def learn(self, source: ClusterNode, ranges: Any) -> None:
        """Update the view from *ranges*, a node's reply to CLUSTER SLOTS. Raises ConnectionError if it is invalid."""
        try:
            parsed = list(_parse_ranges(source, ranges))
        except (TypeError, ValueError, IndexError, AttributeError) as exc:
            raise redis.ConnectionError(f"node {source} gave no answer to CLUSTER SLOTS: {ranges!r:.200}") from exc
        owners = [nodes[0] for first, last, nodes in parsed if first <= self.slot <= last and nodes]
        if not owners:
            raise redis.ConnectionError(f"node {source} knows no owner of slot {self.slot}, which has the fleet's keys")
        self.owner = owners[0]
        self._discovered = tuple(dict.fromkeys(node for _, _, nodes in parsed for node in nodes))

    def doubt(self, node: ClusterNode) -> None:
        """Forget the owner if it is *node*, which failed or refused a command, and query *node* last."""
        if self.owner == node:
            self.owner = None
        self._discovered = tuple(sorted(self._discovered, key=lambda other: other == node))


def _parse_ranges(source: ClusterNode, ranges: Any) -> Iterator[tuple[int, int, list[ClusterNode]]]:
    """Yield (first slot, last slot, nodes), the owner first. A node without a host has the host of *source*."""
    for first, last, *nodes in ranges:
        hosts = [(_decode(node[0]) or source.host, int(node[1])) for node in nodes]
        yield int(first), int(last), [ClusterNode(host, port) for host, port in hosts if port and host != "?"]


def _decode(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name or "")


@cache
def cluster_of(start: tuple[ClusterNode, ...], key: str) -> ClusterNodes:
    """Return this process's view of the cluster with these *start* nodes, for the slot of *key*.

    The view survives reconnects, because the start nodes may have been removed by then.
    """
    return ClusterNodes(start, key_slot(key.encode()))


class _OwnerConnection:
    """Mixin of redis-py's connections: connects to the owner of the slot."""

    #: Class of the connections that query a node for the owner.
    _plain_class: type

    def __init__(self, *, cluster: ClusterNodes, **options: Any) -> None:
        self.cluster = cluster
        self._options = options
        super().__init__(**options)

    def _connect(self) -> Any:
        connect = super()._connect  # type: ignore[misc]
        owner = self.cluster.owner
        if owner is not None:
            try:
                return self._connect_to(owner, connect)
            except (redis.ConnectionError, redis.TimeoutError, OSError):
                pass  # `_connect_to` has dropped the owner
        return self._connect_to(self._find_owner(), connect)

    def _connect_to(self, node: ClusterNode, connect: Any) -> Any:
        self.host, self.port = node
        try:
            return connect()
        except BaseException:
            self.cluster.doubt(node)
            raise

    def _find_owner(self) -> ClusterNode:
        """Query the nodes until one names the owner, and return it. Raises ConnectionError if none does."""
        errors = []
        for node in self.cluster.nodes:
            try:
                self.cluster.learn(node, self._query_slots(node))
            except (redis.RedisError, OSError) as exc:
                self.cluster.doubt(node)
                errors.append(f"{node}: {exc}")
                continue
            if self.cluster.owner is not None:  # otherwise another thread has dropped it already
                return self.cluster.owner
        raise redis.ConnectionError("no node of the cluster says who has the fleet's keys: " + "; ".join(errors))

    def _query_slots(self, node: ClusterNode) -> Any:
        connection = self._plain_class(**{**self._options, "host": node.host, "port": node.port, "db": 0})
        try:
            connection.send_command("CLUSTER", "SLOTS")
            return connection.read_response()
        finally:
            with suppress(redis.RedisError, OSError):
                connection.disconnect()

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except redis.ResponseError as exc:
            if not is_transient(exc):
                raise
            self.cluster.doubt(ClusterNode(self.host, self.port))
            self.disconnect()  # type: ignore[attr-defined]  # replies to other commands may follow
            redirect = parse_redirect(exc)
            if redirect is None:  # probably a failover
                raise
            if redirect.is_being_moved:
                raise redis.ConnectionError(_KEY_BY_KEY) from exc
            self.cluster.owner = ClusterNode(redirect.host or self.host, redirect.port)
            raise SlotMovedError(f"slot {redirect.slot} has moved to {self.cluster.owner}") from exc


#: Error while the slot is migrated key by key, when each node has some of the keys.
_KEY_BY_KEY = (
    "the slot with the fleet's keys is being moved key by key, and no node can answer: nothing is lost, and jobs go on "
    "after the move. Move slots with CLUSTER MIGRATESLOTS (Valkey 9) or CLUSTER MIGRATION (Redis 8.4), which take them "
    "as a whole; or stop the fleet first, and run `celery -A ... affinity check --repair` after the move"
)


class ClusterConnection(_OwnerConnection, redis.Connection):
    _plain_class = redis.Connection


class ClusterSSLConnection(_OwnerConnection, redis.SSLConnection):
    _plain_class = redis.SSLConnection
