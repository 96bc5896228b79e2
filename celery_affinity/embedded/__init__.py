"""A Valkey server, or a cluster, of one's own, for demos and tests: `EmbeddedServer`, `EmbeddedCluster`.

This is their public import path.

Nothing here knows Celery, or what the server is for.
Read `server` first.
"""

from .cluster import EmbeddedCluster
from .server import EmbeddedServer, EmbeddedServerError

__all__ = ["EmbeddedCluster", "EmbeddedServer", "EmbeddedServerError"]
