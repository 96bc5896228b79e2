"""Connections to a cluster: each leads to the node that owns one slot, wherever that slot is when it connects.

All keys of a fleet have one hash tag, so one node has all of them. A node that has them no longer refuses each command
unread, and the next connection leads to where it says.
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
    """The address of a node."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class ClusterNodes:
    """What a process knows of a cluster: the owner of *slot*, and nodes to ask for it, the *start* nodes among them.

    Threads share it. What one of them forgets or learns between two steps of another costs a question at most.
    """

    def __init__(self, start: Iterable[ClusterNode], slot: int) -> None:
        self.slot = slot
        self._start = tuple(start)
        self._known: tuple[ClusterNode, ...] = ()
        self.owner: ClusterNode | None = None

    @property
    def nodes(self) -> list[ClusterNode]:
        """All nodes that may be asked, without doubles: first those that the cluster named last."""
        return list(dict.fromkeys((*self._known, *self._start)))

    def learn(self, asked: ClusterNode, ranges: Any) -> None:
        """Learn from *ranges*, the reply of the node *asked* to CLUSTER SLOTS. Raises ConnectionError for any other."""
        try:
            found = list(_read(asked, ranges))
        except (TypeError, ValueError, IndexError, AttributeError) as exc:
            raise redis.ConnectionError(f"node {asked} gave no answer to CLUSTER SLOTS: {ranges!r:.200}") from exc
        owners = [nodes[0] for first, last, nodes in found if first <= self.slot <= last and nodes]
        if not owners:
            raise redis.ConnectionError(f"node {asked} knows no owner of slot {self.slot}, which has the fleet's keys")
        self.owner = owners[0]
        self._known = tuple(dict.fromkeys(node for _, _, nodes in found for node in nodes))

    def doubt(self, node: ClusterNode) -> None:
        """Ask anew who owns the slot, and *node* after all others: it failed, or refused a command."""
        if self.owner == node:
            self.owner = None
        self._known = (*(each for each in self._known if each != node), *(each for each in self._known if each == node))


def _read(asked: ClusterNode, ranges: Any) -> Iterator[tuple[int, int, list[ClusterNode]]]:
    """Yield first slot, last slot and nodes, the owner first. A node without a host is where it was asked."""
    for first, last, *nodes in ranges:
        hosts = [(_text(each[0]) or asked.host, int(each[1])) for each in nodes]
        yield int(first), int(last), [ClusterNode(host, port) for host, port in hosts if port and host != "?"]


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name or "")


@cache
def cluster_of(start: tuple[ClusterNode, ...], key: str) -> ClusterNodes:
    """Return what this process knows of the cluster with these *start* nodes, as to the owner of *key*.

    A process keeps it over reconnects: by then, the start nodes may be gone.
    """
    return ClusterNodes(start, key_slot(key.encode()))


class _ToOwner:
    """Mixed into a connection of redis-py: it connects to the owner of the slot."""

    #: The class of connections to a node that is asked for the owner.
    _plain: type

    def __init__(self, *, cluster: ClusterNodes, **options: Any) -> None:
        self.cluster = cluster
        self._options = options
        super().__init__(**options)

    def _connect(self) -> Any:
        connect = super()._connect  # type: ignore[misc]
        owner = self.cluster.owner
        if owner is not None:
            try:
                return self._at(owner, connect)
            except (redis.ConnectionError, redis.TimeoutError, OSError):
                pass  # doubted now
        return self._at(self._asked(), connect)

    def _at(self, node: ClusterNode, connect: Any) -> Any:
        self.host, self.port = node
        try:
            return connect()
        except BaseException:
            self.cluster.doubt(node)
            raise

    def _asked(self) -> ClusterNode:
        """Return the owner by the first node that knows it. Raises ConnectionError if none does."""
        errors = []
        for node in self.cluster.nodes:
            try:
                self.cluster.learn(node, self._ask(node))
            except (redis.RedisError, OSError) as exc:
                self.cluster.doubt(node)
                errors.append(f"{node}: {exc}")
                continue
            if self.cluster.owner is not None:  # else another thread doubts it already
                return self.cluster.owner
        raise redis.ConnectionError("no node of the cluster says who has the fleet's keys: " + "; ".join(errors))

    def _ask(self, node: ClusterNode) -> Any:
        connection = self._plain(**{**self._options, "host": node.host, "port": node.port, "db": 0})
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
            self._leave()
            found = parse_redirect(exc)
            if found is None:  # a failover, most likely
                raise
            if found.is_being_moved:
                raise redis.ConnectionError(_KEY_BY_KEY) from exc
            self.cluster.owner = ClusterNode(found.host or self.host, found.port)
            raise SlotMovedError(f"slot {found.slot} has moved to {self.cluster.owner}") from exc

    def _leave(self) -> None:
        self.cluster.doubt(ClusterNode(self.host, self.port))
        self.disconnect()  # type: ignore[attr-defined]  # replies to other commands may follow


#: Error while the slot is moved in the old way, in which each node has some of the keys.
_KEY_BY_KEY = (
    "the slot with the fleet's keys is being moved key by key, and no node can answer: nothing is lost, and jobs go on "
    "after the move. Move slots with CLUSTER MIGRATESLOTS (Valkey 9) or CLUSTER MIGRATION (Redis 8.4), which take them "
    "as a whole; or stop the fleet first, and run `celery -A ... affinity check --repair` after the move"
)


class ClusterConnection(_ToOwner, redis.Connection):
    _plain = redis.Connection


class ClusterSSLConnection(_ToOwner, redis.SSLConnection):
    _plain = redis.SSLConnection
