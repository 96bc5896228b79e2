"""The channels of a cluster: all connections lead to the node that has the fleet's keys, and kombu's own are there too.

Broadcasts are plain pub/sub, which each node passes on to all others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kombu.transport import redis as stock

from ..rules.redis_keys import Keys
from ..server.connections.cluster import ClusterConnection, ClusterSSLConnection, Node, cluster_of
from . import urls
from .channel import AffinityChannel, Channel


class ClusterChannel(AffinityChannel, stock.Channel):
    from_transport_options = Channel.from_transport_options

    connection_class = ClusterConnection
    connection_class_ssl = ClusterSSLConnection

    def keys_of(self, options: Mapping[str, object]) -> Keys:
        return replace(super().keys_of(options), in_cluster=True)

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        return {**super()._connparams(asynchronous), "cluster": cluster_of(tuple(self._start_nodes()), self.keys.base)}

    def _start_nodes(self) -> Iterator[Node]:
        """Yield the nodes of the broker's URLs, in the order of the user, whichever URL the connection is at."""
        client, default = self.connection.client, self.connection.default_port
        named = [(each.host, each.port) for each in map(urls.parse, client.alt) if each.scheme in urls.CLUSTER]
        for host, port in named or [(client.hostname, client.port)]:
            yield Node(host or "localhost", port or default)
