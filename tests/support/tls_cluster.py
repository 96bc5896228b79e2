"""A cluster whose nodes use TLS with clients, replicas and each other."""

from celery_affinity.embedded.server import HeldPort

from .certificates import tls_options
from .cluster import Cluster, Node


class TLSNode(Node):
    """A node that uses TLS with clients, replicas and other nodes, and also accepts the test's plain connections."""

    def __init__(self, directory, executable=None):
        super().__init__(directory, executable)
        self._tls = HeldPort()
        self.tls_port = self._tls.number
        options = tls_options(self.tls_port, directory.parent)
        self._options += (*options, "--tls-cluster", "yes", "--tls-replication", "yes")


class TLSCluster(Cluster):
    Node = TLSNode
