"""A Valkey server of one's own, for demos and tests: `EmbeddedServer`."""

from .server import EmbeddedServer, EmbeddedServerError

__all__ = ["EmbeddedServer", "EmbeddedServerError"]
