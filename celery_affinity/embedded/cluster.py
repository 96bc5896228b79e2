"""A cluster on this machine: three primaries with a replica each, like `redis-cli --cluster create`."""

import itertools
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from .server import HOST, ContextManaged, EmbeddedServer, EmbeddedServerError, HeldPort

#: Milliseconds of silence until nodes consider a node to be down. A replica takes over within about 2 s.
NODE_TIMEOUT_MS = 600
#: Maximum seconds to wait for gossip between nodes, seconds between two checks, and seconds to wait for a reply.
_MAX_WAIT_S = 30.0
_POLL_S = 0.02
_REPLY_TIMEOUT_S = 5.0


class EmbeddedNode(EmbeddedServer):
    """A server with ``cluster-enabled``, which has not met other nodes yet."""

    def __init__(self, directory: Path, executable: str | None = None) -> None:
        self._bus = HeldPort()
        self.bus_port = self._bus.number
        options: dict[str, object] = {
            "cluster-enabled": "yes",
            "cluster-port": self.bus_port,
            "cluster-node-timeout": NODE_TIMEOUT_MS,
            "cluster-replica-validity-factor": 0,
            "cluster-allow-replica-migration": "no",
            "repl-diskless-sync-delay": 0,
        }
        arguments = [str(argument) for name, value in options.items() for argument in (f"--{name}", value)]
        super().__init__(directory=directory, executable=executable, options=arguments)

    def ask(self, *words: object) -> Any:
        """Return the raw reply to a command, because the return types of redis-py's versions differ."""
        connection_class: Any = redis.Connection  # its types differ between versions
        connection = connection_class(
            host=HOST, port=self.port, socket_timeout=_REPLY_TIMEOUT_S, decode_responses=True, protocol=2
        )
        try:
            connection.send_command(*words)
            return connection.read_response()
        finally:
            connection.disconnect()

    @property
    def id(self) -> str:
        return str(self.ask("CLUSTER", "MYID"))

    def replies_with(self, holds: Callable[[Any], bool], *words: object) -> bool:
        """Return True if this node replies to the command *words*, and *holds* is true for its reply."""
        with suppress(redis.RedisError):
            return holds(self.ask(*words))
        return False

    @property
    def is_up(self) -> bool:
        """True if this node considers the cluster to be up."""
        return self.replies_with(lambda info: "cluster_state:ok" in info, "CLUSTER", "INFO")

    @property
    def is_primary(self) -> bool:
        return self.replies_with(lambda role: role[0] == "master", "ROLE")

    @property
    def follows(self) -> bool:
        """True if this is a replica that receives all writes of its primary."""
        return self.replies_with(lambda role: role[0] == "slave" and role[3] == "connected", "ROLE")

    def owns(self, slot: int) -> bool:
        """Return True if this node owns *slot*, according to its own data."""
        node_id, ranges = self.id, self.ask("CLUSTER", "SLOTS")
        return any(first <= slot <= last and owner[2] == node_id for first, last, owner, *_ in ranges)

    def known(self) -> set[str]:
        """Return the ids of the nodes that this node has met."""
        rows = [line.split() for line in self.ask("CLUSTER", "NODES").splitlines()]
        return {row[0] for row in rows if "handshake" not in row[2]}


class EmbeddedCluster(ContextManaged):
    """Six nodes on 127.0.0.1, or fewer with fewer *primaries* or without *replicas* (one per primary).

    *directory*: for their data and logs. *executable*: as in `EmbeddedServer`.
    """

    #: The class of the nodes.
    Node = EmbeddedNode

    def __init__(
        self, *, directory: Path | None = None, executable: str | None = None, primaries: int = 3, replicas: bool = True
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="celery-affinity-") if directory is None else None
        self._directory = Path(self._temporary.name) if self._temporary else Path(str(directory))
        self._executable = executable
        self._primaries = primaries
        self._replicas = primaries if replicas else 0
        self._numbers = itertools.count()
        self.nodes: list[EmbeddedNode] = []

    def start(self) -> None:
        """Start the nodes, and wait until all of them consider the cluster to be up."""
        try:
            for _ in range(self._primaries + self._replicas):
                self.start_node()
            self._join_all()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill all nodes."""
        for node in self.nodes:
            node.kill()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _join_all(self) -> None:
        primaries, replicas = self.nodes[: self._primaries], self.nodes[self._primaries :]
        bounds = [number * REDIS_CLUSTER_HASH_SLOTS // self._primaries for number in range(self._primaries + 1)]
        for primary, first, end in zip(primaries, bounds, bounds[1:], strict=False):
            primary.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        for number, node in enumerate(self.nodes, 1):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number)
        self.meet(itertools.combinations(self.nodes, 2))
        for primary, replica in zip(primaries, replicas, strict=False):
            replica.ask("CLUSTER", "REPLICATE", primary.id)
        for replica in replicas:
            _wait_until(replica, lambda node: node.follows, "follows its primary")
        for node in self.nodes:
            _wait_until(node, lambda node: node.is_up, "takes the cluster for up")

    def start_node(self) -> EmbeddedNode:
        """Start and return another node, which has not met the others."""
        node = self.Node(self._directory / f"node-{next(self._numbers)}", self._executable)
        node.start()
        self.nodes.append(node)
        return node

    def meet(self, pairs: Iterable[tuple[EmbeddedNode, EmbeddedNode]]) -> None:
        """Make the nodes of each pair meet, and wait until all nodes know each other."""
        for first, second in pairs:
            first.ask("CLUSTER", "MEET", HOST, second.port, second.bus_port)
        ids = {node.id for node in self.alive}
        for node in self.alive:
            _wait_until(node, lambda node: node.known() >= ids, "knows the others")

    @property
    def alive(self) -> list[EmbeddedNode]:
        return [node for node in self.nodes if node.is_running]

    @property
    def url(self) -> str:
        return ";".join(f"redis-cluster://{HOST}:{node.port}" for node in self.nodes)

    def owner_of(self, key: str) -> EmbeddedNode | None:
        """Return the primary that owns *key*, or None while there is none."""
        slot = key_slot(key.encode())
        for node in self.alive:
            with suppress(redis.RedisError):
                if node.is_primary and node.owns(slot):
                    return node
        return None

    def replica_of(self, primary: EmbeddedNode) -> EmbeddedNode:
        """Return a replica of *primary*. Raises EmbeddedServerError if there is none."""
        for node in self.alive:
            role = node.ask("ROLE")
            if role[0] == "slave" and int(role[2]) == primary.port:
                return node
        raise EmbeddedServerError(f"{primary!r} has no replica")


def _wait_until(node: EmbeddedNode, holds: Callable[[EmbeddedNode], bool], condition: str) -> None:
    deadline = monotonic() + _MAX_WAIT_S
    while not holds(node):
        if monotonic() > deadline:
            raise EmbeddedServerError(f"not within {_MAX_WAIT_S:g} s: {node!r} {condition}")
        sleep(_POLL_S)
