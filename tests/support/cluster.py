"""A cluster on this machine, with its failures and the actions of operators."""

import time
from contextlib import contextmanager, suppress

import redis
from redis.crc import key_slot

from celery_affinity.embedded.cluster import EmbeddedCluster, EmbeddedNode
from celery_affinity.embedded.server import HOST
from celery_affinity.schema.keys import Keys

from .processes import of_no_test, wait_until

#: The beginning of the fleet's keys.
BASE = Keys().base


class Node(EmbeddedNode):
    def start(self):
        with of_no_test():
            super().start()


class Cluster(EmbeddedCluster):
    """A cluster whose nodes can be killed, handed over, resharded, added and removed."""

    Node = Node

    def __init__(self, **options):
        super().__init__(**options)
        #: Unix times in s at which primaries with the fleet's keys were killed.
        self.deaths_s = []

    @staticmethod
    def url_of(nodes):
        return ";".join(f"redis-cluster://{HOST}:{node.port}" for node in nodes)

    @property
    def owner(self):
        """The primary that has the fleet's keys."""
        return self.owner_of(BASE)

    @property
    def other(self):
        """A primary without the fleet's keys."""
        owner = self.owner
        return next(node for node in self.alive if node is not owner and node.is_primary)

    def client(self):
        """Return a client of the node that has the fleet's keys."""
        return redis.Redis(HOST, self.owner.port)

    def flush(self):
        for node in self.alive:
            if node.is_primary:
                node.ask("FLUSHALL")
                node.ask("FUNCTION", "FLUSH")

    @contextmanager
    def user(self):
        """Create a user on every live node for the time of a block; yield its login for URLs."""
        nodes = self.alive
        for node in nodes:
            node.ask("ACL", "SETUSER", "somebody", "on", ">secret", "~*", "&*", "+@all")
        try:
            yield "somebody:secret"
        finally:
            for node in nodes:
                node.ask("ACL", "DELUSER", "somebody")

    # -- failures

    def kill_owner(self):
        """Kill the primary with the fleet's keys. Return it, and the seconds until its replica has taken over."""
        dead = self.owner
        return dead, self.kill_primary(dead)

    def kill_primary(self, dead):
        """Kill a primary. Return the seconds until its replica has taken over."""
        heir = self.replica_of(dead)
        if dead is self.owner:
            self.deaths_s.append(time.time())
        dead.kill()
        began = time.monotonic()
        wait_until(lambda: heir.is_primary and heir.is_up, 30, "a replica takes over")
        return time.monotonic() - began

    def revive(self, node):
        """Restart a dead node as a replica of the new primary."""
        node.start()
        wait_until(lambda: node.follows, 30, "it follows")

    # -- actions of operators

    def hand_over(self):
        """Fail over to the replica of the owner, without a crash."""
        heir = self.replica_of(self.owner)
        wait_until(lambda: heir.follows, 20, "it follows")
        heir.ask("CLUSTER", "FAILOVER")
        wait_until(lambda: heir.is_primary and self.owner is heir, 20, "it takes over")

    def migrate(self, target):
        """Migrate the slot with the fleet's keys to *target* atomically, which Valkey 9 and Redis 8.4 support."""
        slot = key_slot(BASE.encode())

        def has_moved():
            owner = self.owner
            if owner is target or owner is None:
                return owner is target
            # After a failover, a target with an old slot map refuses the migration, so it is started again.
            with suppress(redis.ResponseError):  # already in progress, or Redis, which lacks this command
                owner.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
            with suppress(redis.ResponseError):  # already in progress, or Valkey, which lacks this command
                target.ask("CLUSTER", "MIGRATION", "IMPORT", slot, slot)
            return False

        wait_until(has_moved, 30, "the slot has moved")

    def reshard(self, target, pause_s=0.0):
        """Move the same slot key by key, like older servers, with a pause in the middle."""
        slot, source = key_slot(BASE.encode()), self.owner
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
            time.sleep(pause_s)
            pause_s = 0.0
        for node in (target, source):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        wait_until(lambda: self.owner is target, 30, "the slot has moved")

    def add(self):
        """Return an additional node without slots."""
        node = self.start_node()
        self.meet((node, each) for each in self.alive if each is not node)
        wait_until(lambda: node.is_up, 20, "it reports the cluster as up")
        return node

    def remove(self, node):
        """Kill a node without slots, and remove it from the cluster."""
        removed = node.id
        node.kill()
        self.nodes.remove(node)
        for each in self.alive:
            each.ask("CLUSTER", "FORGET", removed)
