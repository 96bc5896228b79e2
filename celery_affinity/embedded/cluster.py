"""A cluster on this machine: three primaries with a replica each, as `redis-cli --cluster create` makes it."""

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

#: Time, ms, after which nodes take a silent node for down: a replica takes over within about 2 s.
NODE_TIMEOUT_MS = 600

#: Longest wait, s, for what nodes have to tell each other; pause, s, between two looks; longest wait, s, for a reply.
_WAIT_S = 30.0
_POLL_S = 0.02
_REPLY_S = 5.0


class EmbeddedNode(EmbeddedServer):
    """A server with ``cluster-enabled``, which knows no other node yet."""

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
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        super().__init__(directory=directory, executable=executable, options=words)

    def ask(self, *words: object) -> Any:
        """Return the reply to a command as it comes over the wire: redis-py's versions differ in what they return."""
        kind: Any = redis.Connection  # whose types differ from version to version
        connection = kind(host=HOST, port=self.port, socket_timeout=_REPLY_S, decode_responses=True, protocol=2)
        try:
            connection.send_command(*words)
            return connection.read_response()
        finally:
            connection.disconnect()

    @property
    def id(self) -> str:
        return str(self.ask("CLUSTER", "MYID"))

    @property
    def is_up(self) -> bool:
        """Whether this node takes the cluster for up."""
        with suppress(redis.RedisError):
            return "cluster_state:ok" in self.ask("CLUSTER", "INFO")
        return False

    @property
    def is_primary(self) -> bool:
        with suppress(redis.RedisError):
            return bool(self.ask("ROLE")[0] == "master")
        return False

    @property
    def follows(self) -> bool:
        """Whether this is a replica that gets all writes of its primary."""
        with suppress(redis.RedisError):
            role = self.ask("ROLE")
            return bool(role[0] == "slave" and role[3] == "connected")
        return False

    def owns(self, slot: int) -> bool:
        """Return whether this node has *slot*, as far as it knows."""
        mine, ranges = self.id, self.ask("CLUSTER", "SLOTS")
        return any(first <= slot <= last and owner[2] == mine for first, last, owner, *_ in ranges)

    def known(self) -> set[str]:
        """Return the ids of the nodes that this one has met."""
        rows = [line.split() for line in self.ask("CLUSTER", "NODES").splitlines()]
        return {row[0] for row in rows if "handshake" not in row[2]}


class EmbeddedCluster(ContextManaged):
    """Six nodes on 127.0.0.1. *directory*: for their data and logs. *executable*: as of `EmbeddedServer`.

    *replicas*: whether each primary has one.
    """

    #: The class of the nodes.
    Node = EmbeddedNode

    def __init__(
        self,
        *,
        directory: Path | None = None,
        executable: str | None = None,
        primaries: int = 3,
        replicas: bool = True,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="celery-affinity-") if directory is None else None
        self._directory = Path(self._temporary.name) if self._temporary else Path(str(directory))
        self._executable = executable
        self._primaries = primaries
        self._replicas = primaries if replicas else 0
        self._numbers = itertools.count()
        self.nodes: list[EmbeddedNode] = []

    def start(self) -> None:
        """Start the nodes, and wait until each of them takes the cluster for up."""
        try:
            for _ in range(self._primaries + self._replicas):
                self.start_node()
            self._join_all()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all nodes at once."""
        for node in self.nodes:
            node.kill()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _join_all(self) -> None:
        heads, tails = self.nodes[: self._primaries], self.nodes[self._primaries :]
        bounds = [number * REDIS_CLUSTER_HASH_SLOTS // self._primaries for number in range(self._primaries + 1)]
        for head, first, end in zip(heads, bounds, bounds[1:], strict=False):
            head.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        for number, node in enumerate(self.nodes, 1):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number)
        self.meet(itertools.combinations(self.nodes, 2))
        for head, tail in zip(heads, tails, strict=False):
            tail.ask("CLUSTER", "REPLICATE", head.id)
        for tail in tails:
            _wait_until(tail, lambda node: node.follows, "follows its primary")
        for node in self.nodes:
            _wait_until(node, lambda node: node.is_up, "takes the cluster for up")

    def start_node(self) -> EmbeddedNode:
        """Return a further node, which knows no other."""
        node = self.Node(self._directory / f"node-{next(self._numbers)}", self._executable)
        node.start()
        self.nodes.append(node)
        return node

    def meet(self, pairs: Iterable[tuple[EmbeddedNode, EmbeddedNode]]) -> None:
        """Have the nodes of each pair meet, and wait until all nodes know each other."""
        for one, two in pairs:
            one.ask("CLUSTER", "MEET", HOST, two.port, two.bus_port)
        ids = {node.id for node in self.alive}
        for node in self.alive:
            _wait_until(node, lambda node: node.known() >= ids, "knows the others")

    # -- what clients need

    @property
    def alive(self) -> list[EmbeddedNode]:
        return [node for node in self.nodes if node.is_running]

    @property
    def url(self) -> str:
        return ";".join(f"redis-cluster://{HOST}:{node.port}" for node in self.nodes)

    def owner_of(self, key: str) -> EmbeddedNode | None:
        """Return the primary that has *key*; None while there is none."""
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


def _wait_until(node: EmbeddedNode, is_so: Callable[[EmbeddedNode], bool], what: str) -> None:
    deadline = monotonic() + _WAIT_S
    while not is_so(node):
        if monotonic() > deadline:
            raise EmbeddedServerError(f"not within {_WAIT_S:g} s: {node!r} {what}")
        sleep(_POLL_S)
