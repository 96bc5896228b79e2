"""The server itself: which product it is, whether it keeps what it is given, which schema stands there."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import redis
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError

from ..errors import SchemaError
from ..rules.keys import SCHEMA, Keys

#: A version as INFO may have it, and as it may stand in a log: without blanks, and short.
_VERSION = re.compile(r"[\w.+-]{1,40}")


def check_schema(client: Any, keys: Keys) -> None:
    """Write which schema this process writes, if nobody has. Raises SchemaError if another is written there."""
    name = keys.key("schema")
    found = client.get(name)
    if found is None:
        with suppress(OutOfMemoryError, NoPermissionError):  # a process that can write, and may, will say it
            client.set(name, SCHEMA, nx=True)
    elif not found.isdigit():
        raise SchemaError(
            f"the key {name} must hold the number of a schema (this process writes {SCHEMA}), got: "
            f"{found[:80]!r}: another program has written there"
        )
    elif found.decode() != str(SCHEMA):
        older, newer = sorted((int(found), SCHEMA))
        which = "this process" if older == SCHEMA else "the other processes of the fleet"
        raise SchemaError(
            f"the data at {keys.base} was written with schema {found.decode()}, this process writes schema "
            f"{SCHEMA}: upgrade celery_affinity in {which} to a version that writes schema {newer}"
        )


def may_evict(client: Any) -> str | None:
    """Return the server's eviction policy if it can drop our keys when memory is full; None if not, or if unknown.

    ``volatile-*`` can only drop what is kept of jobs that have ended.
    """
    try:
        policy = str(client.info("memory").get("maxmemory_policy", ""))
    except ResponseError:  # no right to ask
        return None
    return policy if policy.startswith("allkeys") else None


def product(client: Any) -> str:
    """Return name and version of the server, as in "Valkey 9.0.1"; a phrase to that effect if it does not tell."""
    try:
        return product_in(client.info("server"))
    except (redis.RedisError, OSError):  # no right to ask, most likely
        return product_in({})


def product_in(info: Mapping[str, object]) -> str:
    """Return name and version of a server from *info*, the reply to INFO."""
    for name in ("valkey", "redis"):
        version = info.get(f"{name}_version")
        if version is not None and _VERSION.fullmatch(str(version)):
            return f"{name.capitalize()} {version}"
    return "a server that does not tell its version"
