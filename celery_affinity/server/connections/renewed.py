"""Logins that a provider renews while a connection is open: managed servers (IAM) end a connection whose login is old.

redis-py hands a new login to the connections in use, and sends it when they come back to their pool: those that are
kept for long never do.
"""

from contextlib import suppress
from typing import Any

import redis


def hear_of_new_logins(pool: redis.ConnectionPool) -> None:
    """Have the connections of *pool* told of new logins, if they log in by a provider that streams them."""
    provider = pool.connection_kwargs.get("credential_provider")
    if provider is not None:
        redis.Redis(connection_pool=pool, credential_provider=provider)  # a client registers its pool when it is made


def renew_login(connection: Any) -> None:
    """Send the new login of a connection that has one. No reply may be due.

    A login that the server refuses closes the connection: the next one asks the provider.
    """
    if getattr(connection, "_re_auth_token", None) is None or connection._sock is None:
        return
    try:
        connection.re_auth()
    except (redis.RedisError, OSError):
        connection.set_re_auth_token(None)
        with suppress(redis.RedisError, OSError):
            connection.disconnect()


def streams(provider: Any) -> bool:
    """Return whether *provider* brings new logins by itself."""
    kind = getattr(redis.credentials, "StreamingCredentialProvider", None)  # redis-py before 5.3 has none
    return kind is not None and isinstance(provider, kind)
