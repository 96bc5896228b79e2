"""Valkey's Sentinel."""

from celery_affinity.embedded import EmbeddedServer


class Sentinel(EmbeddedServer):
    """A Sentinel: the server's executable with an option after the configuration file."""

    def __init__(self, port, config):
        super().__init__(port=port, directory=config.parent)
        self._config = config

    def _arguments(self, port):
        return [str(self._config), "--port", str(port), "--sentinel"]

    @property
    def url(self):
        return f"sentinel://127.0.0.1:{self.port}/0"
