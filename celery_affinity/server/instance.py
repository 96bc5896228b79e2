"""The server itself: product, version, eviction policy, and the schema of the data."""

import re
from collections.abc import Mapping
from typing import Protocol

import redis
from redis.exceptions import NoPermissionError, ResponseError

from ..errors import SchemaError
from ..rules.redis_keys import SCHEMA, Keys
from .passing import refuses_writes

#: Pattern of a version in INFO that may stand in a log: short, and without blanks.
_VERSION = re.compile(r"[\w.+-]{1,40}")


class Client(Protocol):
    """The commands of a redis-py client that ask about the server itself."""

    def get(self, name: str) -> bytes | None: ...
    def set(self, name: str, value: int, *, nx: bool) -> object: ...
    def info(self, section: str) -> Mapping[str, object]: ...


def check_schema(client: Client, keys: Keys) -> None:
    """Write the number of this process's schema, if none is there. Raises SchemaError if another number is there."""
    name = keys.key("schema")
    found = client.get(name)
    if found is None:
        try:
            client.set(name, SCHEMA, nx=True)
        except ResponseError as exc:
            if not (isinstance(exc, NoPermissionError) or refuses_writes(exc)):
                raise
            # Another process, able and allowed to write, will do so.
    elif not found.isdigit():
        raise SchemaError(
            f"the key {name} must hold the number of a schema (this process writes {SCHEMA}), got: "
            f"{found[:80]!r}: another program has written there"
        )
    elif found.decode() != str(SCHEMA):
        raise SchemaError(
            f"the data at {keys.base} has schema {found.decode()}, and this release of celery_affinity works with "
            f"schema {SCHEMA} only; nothing was changed. Deploy a release that works with schema {found.decode()}, or "
            "give this release a namespace of its own: 'A schema error after a deploy' in the docs has the steps"
        )


def may_evict(client: Client) -> str | None:
    """Return the server's eviction policy if it can drop our keys when memory is full; None if not, or if unknown.

    A ``volatile-*`` policy can drop only keys of jobs that have ended.
    """
    try:
        policy = str(client.info("memory").get("maxmemory_policy", ""))
    except ResponseError:  # no right to ask
        return None
    return policy if policy.startswith("allkeys") else None


def product(client: Client) -> str:
    """Return name and version of the server, as in "Valkey 9.0.1"; a phrase that says so if it does not tell."""
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
