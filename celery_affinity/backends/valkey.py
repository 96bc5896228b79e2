"""Results on Valkey under its own URL scheme: Celery's Redis backend, because both use the same protocol."""

import re
from typing import Any

from celery.backends.redis import RedisBackend

_VALKEY = re.compile(r"^valkey(s?)://")


class ValkeyBackend(RedisBackend):
    """``valkey://`` or ``valkeys://`` in ``result_backend``: the same as ``redis://`` and ``rediss://``."""

    def __init__(self, *args: Any, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, url=url and _VALKEY.sub(r"redis\1://", url), **kwargs)
