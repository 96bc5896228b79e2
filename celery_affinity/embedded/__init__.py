"""A Valkey server of one's own, for demos and tests: `EmbeddedServer`. This is its public import path.

Nothing here knows Celery, or what the server is for.
Read `server` first.
"""

from .server import EmbeddedServer, EmbeddedServerError

__all__ = ["EmbeddedServer", "EmbeddedServerError"]
