"""The server itself: product, version, eviction policy, and the schema of the data."""

import re
from collections.abc import Mapping
from typing import Protocol

import redis
from redis.exceptions import NoPermissionError, ResponseError

from ..broker.failover import refuses_writes
from ..errors import SchemaError, SettingError
from ..schema.keys import SCHEMA, Keys

#: Pattern of a version in INFO that may stand in a log: short, and without blanks.
_VERSION = re.compile(r"[\w.+-]{1,40}")


class Client(Protocol):
    """The commands of a redis-py client that ask about the server itself."""

    def get(self, name: str) -> bytes | None: ...
    def set(self, name: str, value: str, *, nx: bool) -> object: ...
    def info(self, section: str) -> Mapping[str, object]: ...


def check_schema(client: Client, keys: Keys, cohorts: str = "") -> None:
    """Write the number of this process's schema, and its map of *cohorts*, if nothing is there.

    Raises SchemaError if another number is there, SettingError if another map is.
    """
    name = keys.key("schema")
    found = client.get(name)
    if found is None:
        try:
            client.set(name, _stated(cohorts, 1), nx=True)
        except ResponseError as exc:
            if not (isinstance(exc, NoPermissionError) or refuses_writes(exc)):
                raise
            # Another process, able and allowed to write, will do so.
        else:
            if cohorts and (found := client.get(name)) is not None:  # another process may have been first
                _check_cohorts(found, cohorts)
        return
    schema = found.partition(b" ")[0]
    if not schema.isdigit():
        raise SchemaError(
            f"the key {name} must hold the number of a schema (this process writes {SCHEMA}), got: "
            f"{found[:80]!r}: another program has written there"
        )
    if schema.decode() != str(SCHEMA):
        raise SchemaError(
            f"the data at {keys.base} has schema {schema.decode()}, and this release of celery_affinity works with "
            f"schema {SCHEMA} only; nothing was changed. Deploy a release that works with schema {schema.decode()}, or "
            "give this release a namespace of its own: 'A schema error after a deploy' in the docs has the steps"
        )
    if cohorts or schema != found:
        _check_cohorts(found, cohorts)


def _stated(cohorts: str, revision: int) -> str:
    return f"{SCHEMA} {revision} {cohorts}" if cohorts or revision > 1 else str(SCHEMA)


def stated_cohorts(found: bytes | None) -> tuple[int, str]:
    """Return revision and map of the cohorts in the value of the key ``schema``; 0 and "" if there never were any."""
    words = (found or b"").decode(errors="replace").split(" ", 2)
    return (int(words[1]), words[2]) if len(words) == 3 and words[1].isdecimal() else (0, "")


def _check_cohorts(found: bytes, cohorts: str) -> None:
    revision, in_force = stated_cohorts(found)
    if in_force != cohorts:
        raise SettingError(
            f"affinity_cohorts must be the map of the fleet, {in_force or 'no cohorts'!r} (revision {revision}), got: "
            f"{cohorts or 'no cohorts'!r}. Processes with two maps would look for one type's jobs in two places; "
            "'Split a fleet into cohorts' in the docs has the steps of a change"
        )


def adopt_cohorts(client: Client, keys: Keys, cohorts: str) -> int:
    """Make *cohorts* the map of the fleet, and return its revision: other processes are refused from now on."""
    name = keys.key("schema")
    revision, in_force = stated_cohorts(client.get(name))
    if in_force != cohorts:
        revision += 1
        client.set(name, _stated(cohorts, revision), nx=False)
    return revision


def may_evict(client: Client) -> str | None:
    """Return the server's eviction policy if it can drop our keys when memory is full; None if not, or if unknown.

    A ``volatile-*`` policy can drop only keys of jobs that have ended.
    """
    try:
        policy = str(client.info("memory").get("maxmemory_policy", ""))
    except ResponseError:  # no right to ask
        return None
    return policy if policy.startswith("allkeys") else None


def server_product(client: Client) -> str:
    """Return name and version of the server, as in "Valkey 9.0.1"; a phrase that says so if it does not tell."""
    try:
        return product_of_info(client.info("server"))
    except (redis.RedisError, OSError):  # no right to ask, most likely
        return product_of_info({})


def product_of_info(info: Mapping[str, object]) -> str:
    """Return name and version of a server from *info*, the reply to INFO."""
    for name in ("valkey", "redis"):
        version = info.get(f"{name}_version")
        if version is not None and _VERSION.fullmatch(str(version)):
            return f"{name.capitalize()} {version}"
    return "a server that does not tell its version"
