"""The address of a worker's server and the worker's login, as JSON can hold them: the guard connects by these."""

import ssl
from typing import Any

import redis
from redis.sentinel import SentinelConnectionPool

from .redis_client import TLS, Address


def address_of(pool: redis.ConnectionPool) -> Address:
    """Return the address of the server of *pool*.

    Raises ValueError for a connection that the guard must not make: the guard would verify less than the worker does.
    """
    connection: Any = pool.connection_class(**pool.connection_kwargs)  # not opened: read for redis-py's defaults
    username, password = _login(connection)
    address = Address(
        host=getattr(connection, "host", None),
        port=int(getattr(connection, "port", None) or 0),
        path=getattr(connection, "path", None),
        username=username,
        password=password,
        db=int(connection.db or 0),
        client_name=connection.client_name,
        tls=_tls(connection),
    )
    if isinstance(pool, SentinelConnectionPool):
        address["sentinels"] = [address_of(each.connection_pool) for each in pool.sentinel_manager.sentinels]
        address["master"] = pool.service_name
    cluster = getattr(connection, "cluster", None)
    if cluster is not None:
        address["nodes"], address["slot"] = [tuple(each) for each in cluster.nodes], cluster.slot
    return address


def has_provider(pool: redis.ConnectionPool) -> bool:
    """Return whether connections of *pool* log in by a provider, whose next answer may be another login."""
    return pool.connection_kwargs.get("credential_provider") is not None


def _login(connection: Any) -> tuple[str | None, str | None]:
    """Return username and password, by the credential provider if there is one."""
    provider = getattr(connection, "credential_provider", None)
    if provider is None:
        return connection.username, connection.password
    *username, password = provider.get_credentials()
    return (username[0] if username else None), password


def _tls(connection: Any) -> TLS | None:
    if not hasattr(connection, "cert_reqs"):
        return None
    if connection.ssl_validate_ocsp or connection.ssl_validate_ocsp_stapled:
        raise ValueError("It cannot check a certificate's status (OCSP), which the worker's settings require.")
    authorities = connection.ca_data
    return {
        "check_hostname": connection.check_hostname,
        "cert_reqs": int(connection.cert_reqs),
        "include_verify_flags": [int(flag) for flag in getattr(connection, "ssl_include_verify_flags", None) or ()],
        "exclude_verify_flags": [int(flag) for flag in getattr(connection, "ssl_exclude_verify_flags", None) or ()],
        "certfile": connection.certfile,
        "keyfile": connection.keyfile,
        "password": connection.certificate_password,
        "cafile": connection.ca_certs,
        "capath": connection.ca_path,
        "cadata": ssl.DER_cert_to_PEM_cert(authorities) if isinstance(authorities, bytes) else authorities,
        "min_version": None if connection.ssl_min_version is None else int(connection.ssl_min_version),
        "ciphers": connection.ssl_ciphers,
    }
