"""Valkey's own Sentinel."""

from celery_affinity.embedded import EmbeddedServer


class Sentinel(EmbeddedServer):
    """The server's executable, told to be a Sentinel by an option after its configuration file."""

    def __init__(self, port, config):
        super().__init__(port=port, directory=config.parent)
        self._config = config

    def _arguments(self, port):
        return [str(self._config), "--port", str(port), "--sentinel"]

    @property
    def url(self):
        return f"sentinel://127.0.0.1:{self.port}/0"
