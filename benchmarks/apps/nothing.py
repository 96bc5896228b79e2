"""A no-op broker inside the worker process: the rest of a task's time is Celery's own work."""

from queue import Empty

import redis
from kombu.transport import virtual
from kombu.utils.json import loads


class Channel(virtual.Channel):
    _messages = None

    def _put(self, queue, message, **kwargs):
        pass

    def _get(self, queue, timeout=None):
        if self._messages is None:
            with redis.Redis.from_url(self.connection.client.hostname) as client:
                self._messages = client.lrange("celery", 0, -1)
        if not self._messages:
            raise Empty
        return loads(self._messages.pop())

    def _size(self, queue):
        return len(self._messages or ())

    def _purge(self, queue):
        return 0


class Transport(virtual.Transport):
    """Reads all messages of a stock client in one command, and discards published messages."""

    Channel = Channel
    can_parse_url = True
    polling_interval = 0.1
