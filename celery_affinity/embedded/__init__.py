"""An embedded Valkey server or cluster for demos and tests: `EmbeddedServer`, `EmbeddedCluster`.

This is their public import path. The package is independent of Celery. Read `server` first.
"""

from .cluster import EmbeddedCluster
from .server import EmbeddedServer, EmbeddedServerError

__all__ = ["EmbeddedCluster", "EmbeddedServer", "EmbeddedServerError"]
