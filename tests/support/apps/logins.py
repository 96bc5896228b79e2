"""Credential providers for the broker: the file $LOGIN contains user and password, and changes while workers run."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import redis
from redis import credentials

_Streams = getattr(credentials, "StreamingCredentialProvider", object)  # missing before redis-py 5.3


class Plain(redis.CredentialProvider):
    """Returns the current login."""

    def __init__(self):
        self._path = Path(os.environ["LOGIN"])

    def get_credentials(self):
        return tuple(self._path.read_text().split())


class _Token:
    def __init__(self, user, password):
        self._user, self._password = user, password

    def try_get(self, name):
        return {"oid": self._user}[name]

    def get_value(self):
        return self._password


class Streaming(Plain, _Streams):
    """Returns the current login, and calls back on each change."""

    def __init__(self):
        super().__init__()
        self._callbacks = []
        threading.Thread(target=self._watch, args=(self.get_credentials(),), daemon=True).start()

    def on_next(self, callback):
        self._callbacks.append(callback)

    def on_error(self, callback):
        pass

    def is_streaming(self):
        return True

    def _watch(self, known):
        while self._path.exists():
            time.sleep(0.1)
            login = self.get_credentials()
            if login != known:
                known = login
                for each in tuple(self._callbacks):
                    with suppress(redis.RedisError, OSError):  # of a connection that has just ended
                        each(_Token(*login))
