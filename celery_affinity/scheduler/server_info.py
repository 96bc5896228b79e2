"""Facts about the server: product, version, eviction policy, and the schema of the data."""

import re
from collections.abc import Mapping
from typing import Protocol

import redis
from redis.exceptions import NoPermissionError, ResponseError

from ..broker.failover import refuses_writes
from ..errors import SchemaError, SettingError
from ..schema.keys import SCHEMA, Keys

#: Pattern of a version in INFO that is safe to log: short, without spaces.
_VERSION = re.compile(r"[\w.+-]{1,40}")


class Client(Protocol):
    """The redis-py client's commands about the server itself."""

    def get(self, name: str) -> bytes | None: ...
    def set(self, name: str, value: str, *, nx: bool) -> object: ...
    def info(self, section: str) -> Mapping[str, object]: ...


def check_schema(client: Client, keys: Keys, cohorts: str = "") -> None:
    """Write schema number and *cohorts* map if there are none. Raises SchemaError or SettingError if they differ."""
    name = keys.key("schema")
    value = client.get(name)
    if value is None:
        try:
            client.set(name, _format_schema(cohorts, 1), nx=True)
        except ResponseError as exc:
            if not (isinstance(exc, NoPermissionError) or refuses_writes(exc)):
                raise
            # Another process with the right to write will do so.
        else:
            if cohorts and (value := client.get(name)) is not None:  # another process may have been first
                _check_cohorts(value, cohorts)
        return
    schema = value.partition(b" ")[0]
    if not schema.isdigit():
        raise SchemaError(
            f"the key {name} must hold the number of a schema (this process writes {SCHEMA}), got: "
            f"{value[:80]!r}: another program has written there"
        )
    if schema.decode() != str(SCHEMA):
        raise SchemaError(
            f"the data at {keys.base} has schema {schema.decode()}, and this release of celery_affinity works with "
            f"schema {SCHEMA} only; nothing was changed. Deploy a release that works with schema {schema.decode()}, or "
            "give this release a namespace of its own: 'A schema error after a deploy' in the docs has the steps"
        )
    if cohorts or schema != value:
        _check_cohorts(value, cohorts)


def _format_schema(cohorts: str, revision: int) -> str:
    return f"{SCHEMA} {revision} {cohorts}" if cohorts or revision > 1 else str(SCHEMA)


def stated_cohorts(value: bytes | None) -> tuple[int, str]:
    """Return revision and cohort map in the value of the key ``schema``; 0 and "" if there was never a map."""
    tokens = (value or b"").decode(errors="replace").split(" ", 2)
    return (int(tokens[1]), tokens[2]) if len(tokens) == 3 and tokens[1].isdecimal() else (0, "")


def _check_cohorts(value: bytes, cohorts: str) -> None:
    revision, in_force = stated_cohorts(value)
    if in_force != cohorts:
        raise SettingError(
            f"affinity_cohorts must be the map of the fleet, {in_force or 'no cohorts'!r} (revision {revision}), got: "
            f"{cohorts or 'no cohorts'!r}. Processes with two maps would look for one type's jobs in two places; "
            "'Split a fleet into cohorts' in the docs has the steps of a change"
        )


def adopt_cohorts(client: Client, keys: Keys, cohorts: str) -> int:
    """Make *cohorts* the fleet's map, and return its revision. From now on, processes with another map are rejected."""
    name = keys.key("schema")
    revision, in_force = stated_cohorts(client.get(name))
    if in_force != cohorts:
        revision += 1
        client.set(name, _format_schema(cohorts, revision), nx=False)
    return revision


def may_evict(client: Client) -> str | None:
    """Return the server's eviction policy if it can evict live keys when memory is full; None if not, or if unreadable.

    A ``volatile-*`` policy can evict only keys of ended jobs.
    """
    try:
        policy = str(client.info("memory").get("maxmemory_policy", ""))
    except ResponseError:  # no right to run INFO
        return None
    return policy if policy.startswith("allkeys") else None


def server_product(client: Client) -> str:
    """Return product and version of the server, as in "Valkey 9.0.1", or a phrase if they are unreadable."""
    try:
        return product_of_info(client.info("server"))
    except (redis.RedisError, OSError):  # probably no right to run INFO
        return product_of_info({})


def product_of_info(info: Mapping[str, object]) -> str:
    """Return product and version of a server from *info*, the reply to INFO."""
    for name in ("valkey", "redis"):
        version = info.get(f"{name}_version")
        if version is not None and _VERSION.fullmatch(str(version)):
            return f"{name.capitalize()} {version}"
    return "a server that does not tell its version"
