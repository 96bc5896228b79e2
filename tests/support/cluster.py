"""A cluster on this machine: three primaries with a replica each, made as `redis-cli --cluster create` does."""

import itertools
import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.embedded.server import HOST, _free_port
from celery_affinity.rules.redis_keys import Keys

from .processes import MARK, wait_until

#: Time, ms, after which nodes take a silent node for down: a replica takes over within some 2 s.
NODE_TIMEOUT_MS = 600


@contextmanager
def _of_no_test():
    """Leave out the mark by which a process counts as one of a test: a test may bring back a node that outlives it."""
    mark = os.environ.pop(MARK, None)
    try:
        yield
    finally:
        if mark is not None:
            os.environ[MARK] = mark


class Node(EmbeddedServer):
    """A node that is not in a cluster yet."""

    def __init__(self, directory, executable=None, options=()):
        self.bus_port = _free_port()
        cluster = {
            "cluster-enabled": "yes",
            "cluster-port": self.bus_port,
            "cluster-node-timeout": NODE_TIMEOUT_MS,
            "cluster-replica-validity-factor": 0,
            "cluster-allow-replica-migration": "no",
            "repl-diskless-sync-delay": 0,
        }
        words = [str(word) for name, value in cluster.items() for word in (f"--{name}", value)]
        super().__init__(directory=directory, executable=executable, options=(*words, *options))

    def start(self):
        with _of_no_test():
            super().start()

    def ask(self, *words):
        """Return the reply to a command as it comes over the wire."""  # redis-py's versions differ in what they return
        connection = redis.Connection(host=HOST, port=self.port, socket_timeout=5, decode_responses=True, protocol=2)
        try:
            connection.send_command(*words)
            return connection.read_response()
        finally:
            connection.disconnect()

    @property
    def id(self):
        return self.ask("CLUSTER", "MYID")

    def owns(self, slot):
        """Return whether this node, and no other, has *slot*, as far as it knows."""
        mine = self.id
        ranges = self.ask("CLUSTER", "SLOTS")
        return any(first <= slot <= last and owner[2] == mine for first, last, owner, *_ in ranges)

    def known(self):
        """Return the ids of the nodes that this one knows well."""
        rows = [line.split() for line in self.ask("CLUSTER", "NODES").splitlines()]
        return {row[0] for row in rows if "handshake" not in row[2]}

    def is_up(self):
        with suppress(redis.RedisError):
            return "cluster_state:ok" in self.ask("CLUSTER", "INFO")

    def is_primary(self):
        with suppress(redis.RedisError):
            return self.ask("ROLE")[0] == "master"

    def follows(self):
        with suppress(redis.RedisError):
            role = self.ask("ROLE")
            return role[0] == "slave" and role[3] == "connected"


class Cluster:
    """Nodes in *directory*: three primaries with all slots between them, and three replicas."""

    def __init__(self, directory, executable=None, primaries=3):
        self.directory, self.executable = Path(directory), executable
        self.nodes = []
        self._numbers = itertools.count()
        for _ in range(2 * primaries):
            self._start()
        heads, tails = self.nodes[:primaries], self.nodes[primaries:]
        for number, node in enumerate(heads):
            first, last = (each * SLOTS // primaries for each in (number, number + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        self._meet(itertools.combinations(self.nodes, 2))
        for head, tail in zip(heads, tails, strict=True):
            self.replicate(tail, head)
        for node in self.nodes:
            wait_until(node.is_up, 20, "the node takes the cluster for up")

    def _start(self):
        node = Node(self.directory / f"node-{next(self._numbers)}", self.executable)
        node.start()
        self.nodes.append(node)
        return node

    def _meet(self, pairs):
        for one, two in pairs:
            one.ask("CLUSTER", "MEET", HOST, two.port, two.bus_port)
        ids = {node.id for node in self.alive}
        for node in self.alive:
            wait_until(lambda node=node: node.known() >= ids, 20, "the nodes know each other")

    def replicate(self, replica, primary):
        replica.ask("CLUSTER", "REPLICATE", primary.id)
        wait_until(replica.follows, 20, "the replica follows")

    def add(self):
        """Return a further node, which has no slots."""
        node = self._start()
        self._meet((node, each) for each in self.alive if each is not node)
        wait_until(node.is_up, 20, "it takes the cluster for up")
        return node

    def remove(self, node):
        """Take a node that owns no slot out of the cluster, and end it."""
        gone = node.id
        node.kill()
        self.nodes.remove(node)
        for each in self.alive:
            each.ask("CLUSTER", "FORGET", gone)

    def close(self):
        for node in self.nodes:
            node.kill()

    # -- what clients and tests need

    @property
    def alive(self):
        return [node for node in self.nodes if node.is_running]

    @property
    def url(self):
        return self.url_of(self.nodes)

    @staticmethod
    def url_of(nodes):
        return ";".join(f"redis-cluster://{HOST}:{node.port}" for node in nodes)

    def owner(self, key=None):
        """Return the primary that owns *key*, by default the fleet's keys."""
        slot = key_slot((key or Keys().base).encode())
        for node in self.alive:
            with suppress(redis.RedisError):
                if node.is_primary() and node.owns(slot):
                    return node
        return None

    def client(self):
        """Return a client of the node that has the fleet's keys."""
        return redis.Redis(HOST, self.owner().port)

    def flush(self):
        for node in self.alive:
            if node.is_primary():
                node.ask("FLUSHALL")
                node.ask("FUNCTION", "FLUSH")

    # -- faults, and what operators do

    def replica_of(self, primary):
        roles = {node: node.ask("ROLE") for node in self.alive}
        return next(node for node, role in roles.items() if role[0] == "slave" and role[2] == primary.port)

    def kill_owner(self):
        """End the primary that has the fleet's keys. Return it, and the time, s, until another one has taken over."""
        dead = self.owner()
        heir = self.replica_of(dead)
        dead.kill()
        began = time.monotonic()
        wait_until(lambda: heir.is_primary() and heir.is_up(), 30, "a replica takes over")
        return dead, time.monotonic() - began

    def revive(self, node):
        """Bring a dead node back, as the replica of the one that took over."""
        node.start()
        wait_until(lambda: not node.is_primary() and node.follows(), 30, "it follows")

    def hand_over(self):
        """Have the replica of the owner take over in good order (CLUSTER FAILOVER)."""
        heir = self.replica_of(self.owner())
        wait_until(heir.follows, 20, "it follows")
        heir.ask("CLUSTER", "FAILOVER")
        wait_until(lambda: heir.is_primary() and self.owner() is heir, 20, "it takes over")

    def migrate(self, target, key=None):
        """Move the slot of *key* to *target* as a whole (Valkey 9)."""
        slot, source = key_slot((key or Keys().base).encode()), self.owner(key)
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
        wait_until(lambda: self.owner(key) is target, 30, "the slot has moved")
